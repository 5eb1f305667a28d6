"""Runs an operator with the same inputs and config on several backends. Outputs are compared with each other and with
the reference.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from kernel_references import fast_reference
from romou.base.errors import BuildError, InvalidConfigError, RomouError
from romou.base.space import Config
from romou.compiler.assembly.kernel import build_task
from romou.compiler.task import TunableTask
from romou.devices.backends import backend
from romou.devices.targets import Target
from romou.runtime.workers.child import ChildCrashError, ChildProcess, ChildTimeoutError
from romou.tuner.measure import verify
from romou.tuner.measure.fingerprint import split_device
from tvm_patches.runtime import device_tensor

# A kernel that takes longer hangs. Its process ends, and a new one continues.
LIMIT_S = 300.0
# Random configs of a target to search for one that all targets have.
DRAWN = 256
SUB_GROUP = "sub_group"


class AttachedTarget:
    """A target with an available device, and a process that runs its kernels. A kernel that kills the process is a
    result.
    """

    def __init__(self, text: str) -> None:
        asked = Target(text)
        index = asked.backend.device_index(asked.device_name)
        report = asked.backend.check_device(index)
        if not report.is_usable:
            raise BuildError(f"{text}: the device does not compute a small kernel right: {report}")
        facts = asked.backend.facts(index)
        self.text, self.device, self.name = text, f"{asked.kind}:{index}", str(facts["name"])
        self.target = asked.limited_to(facts)
        # Processes that multiprocessing spawns list fewer OpenCL devices once this one has opened NVIDIA's driver.
        self._child = ChildProcess(text)

    def output(self, task: TunableTask, config: Config, inputs: Sequence[np.ndarray]) -> np.ndarray | str:
        """Return the output, or the reason why there is none."""
        arguments = (task.to_json(), dict(config), self.target.to_json(), self.device, list(inputs))
        try:
            output: np.ndarray | str = self._child.call(f"{__name__}:output_of", *arguments, timeout_s=LIMIT_S)
        except (ChildCrashError, ChildTimeoutError) as error:
            return f"{type(error).__name__}: {error}"
        return output

    def close(self) -> None:
        """End the process."""
        self._child.kill()


def places_of(texts: Sequence[str]) -> tuple[list[AttachedTarget], dict[str, str]]:
    """Return the targets with an available device, and the reasons why the others have none. UsageError for an invalid
    target.
    """
    found, absent = [], {}
    for text in texts:
        Target(text)
        try:
            found.append(AttachedTarget(text))
        except RomouError as error:
            absent[text] = str(error).splitlines()[0]
    return found, absent


def output_of(
    task_json: str, choices: dict[str, Any], target_json: str, device: str, inputs: list[np.ndarray]
) -> np.ndarray | str:
    """Build and run one config, in a separate process."""
    task, target, config = TunableTask.from_json(task_json), Target.from_json(target_json), Config(choices)
    kind, index = split_device(device)
    handle, scopes = backend(kind).device(index), task.image_scopes(config, target)
    try:
        module = build_task(task, config, target)
    except (InvalidConfigError, BuildError) as error:
        return f"{type(error).__name__}: {error}"
    arrays = (*task.arguments(inputs, config), verify.poison(*verify.output_spec(task)))
    try:
        tensors = [
            device_tensor(a, handle, scopes.get(str(p.name), "global"))
            for a, p in zip(arrays, task.func.params, strict=True)
        ]
        module["main"](*tensors)
        handle.sync()
        return np.asarray(tensors[-1].numpy())
    except Exception as error:  # a driver raises errors of any type
        return f"{type(error).__name__}: {error}"


def carried(config: Mapping[str, Any], task: TunableTask, target: Target) -> Config | str:
    """Return the config for another target. Knobs that only one of the two has take their default there, and sub-groups
    the target's size.

    If the target has no such config, return the missing choice as text.
    """
    space = task.space(target)
    choices = {name: config.get(name, default) for name, default in space.default().items()}
    # Only the size differs between devices. The kernel's text is the same.
    if choices.get(SUB_GROUP, 1) != 1:
        choices[SUB_GROUP] = max(space.knobs[SUB_GROUP])
    found = Config(choices)
    if lacking := [f"{name}={choice}" for name, choice in found.items() if choice not in space.knobs[name]]:
        return f"{target.kind} has no {', '.join(lacking)}"
    return found if space.is_valid(found) else f"{target.kind} allows no such combination"


def common_configs(
    task: TunableTask,
    targets: Sequence[Target],
    count: int,
    rng: np.random.Generator,
    left_out: Counter[str] | None = None,
) -> list[tuple[Config, ...]]:
    """Return the default config and up to `count` random ones, each in the form of every target. They are drawn from
    the targets in turn.

    left_out: counts the drawn configs that some target lacks, by the reason
    """
    drawn = [task.space(target).sample(rng, DRAWN if count else 0) for target in targets]
    in_turn = (config for several in itertools.zip_longest(*drawn) for config in several if config is not None)
    defaults = (task.default_config(target) for target in targets)
    found: dict[str, tuple[Config, ...]] = {}
    for wanted, some in ((1, defaults), (1 + count, in_turn)):
        for config in some:
            if len(found) >= wanted:
                break
            everywhere = [carried(config, task, target) for target in targets]
            known = tuple(one for one in everywhere if isinstance(one, Config))
            if len(known) == len(targets):
                found.setdefault("".join(one.key for one in known), known)
            elif left_out is not None:
                left_out[next(one for one in everywhere if isinstance(one, str))] += 1
    return list(found.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crossing:
    """A config on all places.

    errors: by target text against the reference, and by "A and B" against each other
    problems: the faults found
    """

    configs: tuple[Config, ...]
    errors: Mapping[str, float]
    problems: Sequence[str]


def cross(
    task: TunableTask, places: Sequence[AttachedTarget], count: int, seed: int, left_out: Counter[str] | None = None
) -> Iterator[Crossing]:
    """Run the default config and random ones that all places have. left_out: see `common_configs`."""
    inputs = verify.make_inputs(task, seed)
    reference = _reference(task, inputs)
    if not np.isfinite(reference).all():
        inputs = verify.make_inputs(task, seed, is_positive=True)
        reference = _reference(task, inputs)
    rng = np.random.default_rng([seed, int(task.key, 16)])
    for configs in common_configs(task, [place.target for place in places], count, rng, left_out):
        precision = next(filter(None, map(task.precision, configs)), None)
        outputs = {
            place.text: place.output(task, config, inputs) for place, config in zip(places, configs, strict=True)
        }
        there = {text: output for text, output in outputs.items() if isinstance(output, np.ndarray)}
        problems = [f"{text}: {output}" for text, output in outputs.items() if isinstance(output, str)]
        errors: dict[str, float] = {}
        pairs = [(text, output, reference) for text, output in there.items()]
        pairs += [(f"{a} and {b}", there[a], there[b]) for a, b in itertools.combinations(there, 2)]
        for name, output, other in pairs:
            checked = verify.compare(output, other, precision)
            errors[name] = checked.relative_l2_error or 0.0
            problems += [f"{name}: {checked.problem}"] if checked.problem else []
        yield Crossing(configs=configs, errors=errors, problems=problems)


def _reference(task: TunableTask, inputs: Sequence[np.ndarray]) -> np.ndarray:
    tensors = [tvm.runtime.tensor(array) for array in (*inputs, verify.poison(*verify.output_spec(task)))]
    fast_reference(task)["main"](*tensors)
    return np.asarray(tensors[-1].numpy())
