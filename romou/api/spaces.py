"""The knob space of every task of a model: as it is declared, and less what the criteria exclude (romou.pruned_spaces)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from romou.api.graph import import_model, lower
from romou.api.place import as_target
from romou.core.space import Space
from romou.pruning import PrunedSpace, Rules
from romou.target import Target
from romou.tvm_patches.compat import check_versions

if TYPE_CHECKING:
    import onnx

    from romou.tasks.tunable import TunableTask


def knob_spaces(
    model: onnx.ModelProto | str | Path, *, target: Target | str | Mapping[str, object] = "opencl", shapes: Mapping[str, Sequence[int]] | None = None
) -> list[tuple[TunableTask, Space]]:
    """Return the knob space of every task of a model on the target's device, with all its configs. Arguments and errors are those of `tune`."""
    check_versions()
    target = as_target(target)
    return [(task, task.space(target)) for task in lower(import_model(model, shapes), target).tasks]


def pruned_spaces(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    shapes: Mapping[str, Sequence[int]] | None = None,
    rules: Rules | None = None,
) -> list[tuple[TunableTask, PrunedSpace]]:
    """The knob space of every task of a model, less what the criteria exclude on the target's device; `PrunedSpace.report` counts what went.

    Needs no device for a target that names one. Other arguments and errors are those of `tune`.

    Parameters
    ----------
    rules
        What the criteria leave to choose, e.g. `Rules(count_per_work_item=True)` for the paper's way to count bytes.
    """
    check_versions()
    target = as_target(target)
    return [(task, task.pruned_space(target, rules)) for task in lower(import_model(model, shapes), target).tasks]
