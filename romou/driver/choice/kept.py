"""The configs that a tuning run chose by times of the whole model, kept beside its records for later runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from romou.base.files import read_file, replacing
from romou.base.foreign import parsed
from romou.base.schema import made_of
from romou.base.space import Config
from romou.compiler.compilation import Compilation
from romou.compiler.task import under_keys
from romou.driver.site import TimingSite
from romou.runtime.module import TunedModel

logger = logging.getLogger("romou")

FOLDER_NAME = "chosen"

# Task key -> config. None leaves a task to TVM's schedules.
Choice: TypeAlias = Mapping[str, Config | None]


def choice_of(model: TunedModel, compilation: Compilation) -> Choice:
    """Return the configs of a model that was tuned from `compilation`."""
    program = model.built.program
    assert program is not None, "models of one shape have their program"
    lowered = compilation.joined_at(program.joined)
    return {lowered.task_of[name].key: config for name, config in program.config_of.items()}


def keep_choice(folder: Path, compilation: Compilation, site: TimingSite, model: TunedModel) -> None:
    """Write the configs of a tuned model. A folder that is not writable is no error."""
    choice = choice_of(model, compilation)
    text = json.dumps({key: None if config is None else dict(config) for key, config in choice.items()})
    with contextlib.suppress(OSError), replacing(_path(folder, compilation, site)) as fresh:
        fresh.write_text(text, encoding="utf-8")


def kept_choice(folder: Path, compilation: Compilation, site: TimingSite) -> Choice | None:
    """Return the configs that an earlier run chose for the same tasks, target and device. None if there are none."""
    path = _path(folder, compilation, site)
    if not path.exists():
        # Of a version before 0.2.0, which had other keys. Drop it in 0.3.0.
        path = _path(folder, compilation, site, [task.structure for task in compilation.candidates])
    try:
        kept = made_of(dict[str, dict[str, int | str | bool] | None], parsed(read_file(path)))
        configs = {key: None if choices is None else Config(choices) for key, choices in kept.items()}
        return under_keys(configs, compilation.candidates)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("%s is not used, since it is damaged: %s", path, error)
        return None


def _path(folder: Path, compilation: Compilation, site: TimingSite, keys: Sequence[str] | None = None) -> Path:
    assert site.device is not None, "candidates were measured"
    keys = [task.key for task in compilation.candidates] if keys is None else keys
    identity = [sorted(keys), str(site.named), site.device.to_dict()]
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return folder / FOLDER_NAME / f"{name}.json"
