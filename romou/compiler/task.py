"""A task: a fused function, the template that schedules it, and its knob space on a target.

A task travels to other processes as text.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tvm
from tvm import tirx
from tvm_ffi.structural import structural_hash

from romou.base.errors import InvalidConfigError
from romou.base.limits import Limits
from romou.base.space import Config, Space
from romou.base.task import Task
from romou.compiler.operators.contraction.tensor_core import TF32
from romou.compiler.operators.costs.estimate import call_parts, estimable
from romou.compiler.operators.costs.first_configs import first_configs
from romou.compiler.operators.families import template_of
from romou.compiler.operators.schedule_template import StoredWeight, Template
from romou.compiler.scheduling.blocks import has_long_integers, is_scheduled, tensors_between
from romou.compiler.task_key import task_key
from romou.compiler.tir.expressions import bytes_of
from romou.compiler.tir.primitives import FREE_IMAGES, replace_parameter
from romou.compiler.tir.slices import without_slices

if TYPE_CHECKING:
    from romou.compiler.operators.analysis.usage import KernelUsage
    from romou.devices.targets import Target


_T = TypeVar("_T", bound="TunableTask")
_V = TypeVar("_V")
# Structure and family -> key. A compilation makes a task several times, and a hash takes a fifth of a key's time.
_KEYS: dict[tuple[str, str], str] = {}
# On any GPU a kernel that moves less takes no longer than its launch.
_SMALL_BYTES = 1 << 16


class TunableTask(Task):
    """A task with its schedule template: its knob space on any target, and kernels of its configs."""

    @classmethod
    def of(cls, func: tirx.PrimFunc, calls: int = 1) -> TunableTask | None:
        """Return the task of a fused function, None if no template covers it or it is scheduled already."""
        func = without_slices(func)
        if is_scheduled(func) or template_of(func) is None:
            return None
        plain = plain_form(func)
        template = template_of(plain)
        assert template is not None, "the plain form keeps the block that carries the template's name"
        return cls(key_of(plain, template), template.name, template.family, plain, calls, template.flops)

    @cached_property
    def structure(self) -> str:
        """16 hex digits of the function's TIR, as versions before 0.2.0 wrote it. They had it as their key."""
        return structure_of(self.func)

    @property
    def is_small(self) -> bool:
        """Return whether the task moves few bytes and sums no products.

        It then takes the time of a launch, so tuning gains nothing.
        An operator without a graph around it is never small: a person wants it tuned.
        """
        if self.func.attrs and FREE_IMAGES in self.func.attrs:
            return False
        return not self.template.sums_products and self.moved_bytes < _SMALL_BYTES

    @property
    def l1(self) -> str:
        """The rule that prunes the space by the first-level cache, a key of `L1_RULES`. Empty without pruning."""
        return ""

    @property
    def moved_bytes(self) -> int:
        """Bytes of its inputs, weights and output."""
        return sum(bytes_of(p.shape, str(p.dtype)) for p in self.func.params)

    def as_kind(self, kind: type[_T], **more: Any) -> _T:
        """Return the task as another class of tasks, whose own fields are `more`."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(Task)}
        return kind(**own, **more)

    def with_free_images(self) -> TunableTask:
        """Return the operator without a graph around it: the config decides whether its data and output are images."""
        func = self.func
        for name in self.template.images:
            func = replace_parameter(func, name, scope="global")
        task = TunableTask.of(func.with_attr(FREE_IMAGES, True), self.calls)
        assert task is not None, "an attribute changes nothing that the template looks at"
        return task

    @cached_property
    def template(self) -> Template:
        """The schedule template that covers the function."""
        template = template_of(self.func)
        assert template is not None, (
            "a Task is made by TunableTask.of or from_json, from a function that has a template"
        )
        return template

    def limits(self, target: Target) -> Limits:
        """Return the limits of the target's device, which schedules read."""
        return target.limits

    def space(self, target: Target) -> Space:
        return self.template.space(self.limits(target))

    def default_config(self, target: Target) -> Config:
        """Return the config that is tried first, and used if the task is not tuned."""
        return self.starts(target)[0]

    @cached_property
    def _starts(self) -> dict[Target, list[Config]]:
        """A cache of first configs."""
        return {}

    def usage_of(self, config: Mapping[str, Any], target: Target) -> KernelUsage:
        """Return the usage of a config's kernel by formulas."""
        return self.template.form(self.limits(target)).usage(
            {name: np.asarray(value) for name, value in config.items()}
        )

    def estimated_seconds(self, target: Target) -> float | None:
        """Return the estimated seconds of a call with the default config (`call_parts`). None without an estimate."""
        if not self.template.has_formulas:
            return None
        parts = call_parts(self.usage_of(self.default_config(target), target), estimable(target).spec, self.moved_bytes)
        return None if parts is None else float(sum(np.asarray(part) for part in parts.values()))

    def direct_config(self, target: Target) -> Config:
        """Return the first config whose algorithm has neither workspaces nor larger weights."""
        return next(config for config in self.starts(target) if self.template.is_lean(config))

    def with_fp32_sums(self, config: Config, target: Target) -> Config | None:
        """Return `config` with sums in fp32. None if the space on `target` has no such config."""
        changed, space = self.template.with_fp32_sums(config), self.space(target)
        return changed if space.knows(changed) and space.is_valid(changed) else None

    def starts(self, target: Target) -> list[Config]:
        """Return a decent config of each algorithm, the default config first: the estimate's picks, or hand rules'."""
        if target not in self._starts:
            self._starts[target] = first_configs(self.template, target)
        return self._starts[target]

    def schedule(self, config: Config, target: Target) -> tvm.IRModule:
        """Return scheduled TIR with the entry `main`.

        Raises
        ------
        InvalidConfigError
            The config cannot be scheduled.
        UsageError
            The config is of another space.
        """
        # The config is looked up in the whole space, because building one config does not need the pruned space.
        limits = self.limits(target)
        self.template.space(limits).index_of(config)
        return self.template.schedule(config, limits)

    def image_scopes(self, config: Config, target: Target) -> dict[str, str]:
        """Return parameter name -> memory scope, for the parameters that `schedule` puts in images."""
        return self.template.image_scopes(config, self.limits(target))

    def stored_weight(self, config: Config) -> StoredWeight | None:
        """Return the conversion of the weight for the kernel of `config`, None if it reads the weight of `func`."""
        return self.template.stored_weight(config)

    def precision(self, config: Config) -> str | None:
        """Return the precision that the kernel of `config` is held to, "tf32" or "float16". None for the output's type.

        A kernel may keep in fp32 what the function rounds to fp16 between its operators. TF32 has the bits of fp16.
        """
        rounds = any(str(tensor.dtype) == "float16" for tensor in tensors_between(self.func))
        is_widened = rounds and str(self.func.params[-1].dtype) == "float32"
        return self.template.precision(config) or (TF32 if is_widened else None)

    def arguments(self, arrays: Sequence[np.ndarray], config: Config) -> list[np.ndarray]:
        """Return arrays for the first parameters of `func`, in order, converted for the kernel of `config`."""
        stored = self.stored_weight(config)
        return [
            stored(array) if stored and str(p.name) == stored.name else array
            for p, array in zip(self.func.params, arrays, strict=False)
        ]

    def check(self, kernel: tirx.PrimFunc, config: Config, target: Target) -> None:
        """Raise InvalidConfigError if a lowered kernel may not be built, by the template's limits."""
        if (excess := self.template.excess(kernel, self.limits(target))) is not None:
            raise InvalidConfigError(f"{self.name}: {excess}")

    def to_json(self) -> str:
        """Return the task as text, which `from_json` reads."""
        return json.dumps({"func": tvm.ir.save_json(self.func), "calls": self.calls})

    def to_json_for(self, config: Config, target: Target) -> str:
        """Return `to_json` for a process that builds `config`.

        Raises
        ------
        InvalidConfigError
            A schedule of the user's, which is run here, refuses the config.
        """
        func = self.template.ready_to_build(config, self.limits(target))
        text = self.to_json()
        return text if func.same_as(self.func) else json.dumps({**json.loads(text), "func": tvm.ir.save_json(func)})

    @staticmethod
    def from_json(text: str) -> TunableTask:
        """Return the inverse of `to_json`."""
        data = json.loads(text)
        task = TunableTask.of(tvm.ir.load_json(data["func"]), data["calls"])
        assert task is not None, "the text was written from a task"
        return task


def plain_form(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return `func` without the attributes of its module, with 32-bit indices if it has no other 64-bit integers."""
    func = without_slices(func)
    for name in ("global_symbol", "op_pattern"):
        if func.attrs and name in func.attrs:
            func = func.without_attr(name)
    if has_long_integers(func):
        return func  # 64-bit numbers stay unchanged, and so do indices computed from them
    narrow = tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule({"main": func}))
    return narrow["main"]


def key_of(plain: tirx.PrimFunc, template: Template) -> str:
    """Return the key of a function's task. plain: `plain_form` of the function."""
    same = (structure_of(plain), template.family)
    if same not in _KEYS:
        _KEYS[same] = task_key(plain, template.family, template.annotation)
    return _KEYS[same]


def by_keys(tasks: Sequence[TunableTask]) -> dict[str, TunableTask]:
    """Return key -> task for what is kept of tasks. Versions before 0.2.0 had other keys: drop these in 0.3.0."""
    return {task.structure: task for task in tasks} | {task.key: task for task in tasks}


def under_keys(kept: Mapping[str, _V], tasks: Sequence[TunableTask]) -> dict[str, _V]:
    """Return what is kept of tasks under the keys of this version."""
    known = by_keys(tasks)
    return {known[key].key if key in known else key: value for key, value in kept.items()}


def structure_of(func: tirx.PrimFunc) -> str:
    """Return 16 hex digits that depend only on structure, not on names of variables."""
    return f"{structural_hash(func) & (2**64 - 1):016x}"
