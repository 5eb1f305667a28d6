"""The kernels of a model: each function of a fused module with a schedule."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import tvm
from tvm import s_tir, tirx

from romou.base.rung import Rung
from romou.base.space import Config
from romou.compiler.assembly.build import Kept
from romou.compiler.assembly.default_schedules import default_schedule, simplest_schedule
from romou.compiler.failures import Failures
from romou.compiler.operators.families import RUNG
from romou.compiler.operators.kernels.recurrent import is_time_loop, schedule_time_loop
from romou.compiler.operators.schedule_template import StoredWeight
from romou.compiler.passes.fp16_storage import compute_in_single
from romou.compiler.scheduling.blocks import is_scheduled
from romou.compiler.task import TunableTask, structure_of
from romou.compiler.tir.slices import slices_of, with_slices
from romou.compiler.tir.traversal import copy_of

if TYPE_CHECKING:
    from romou.devices.targets import Target


@dataclass(kw_only=True)
class ModelKernels:
    """The configs of a model, and how the kernels of these configs read their weights.

    tasks, configs, kept: see `schedule_model`.
    stored: function name -> position of the weight, and the conversion of its values.
    scopes: function name -> position of an argument -> memory scope.
    """

    tasks: Mapping[str, TunableTask]
    configs: Mapping[str, Config | None]
    target: Target
    kept: Kept
    stored: dict[str, tuple[int, StoredWeight]] = field(default_factory=dict)
    scopes: dict[str, dict[int, str]] = field(default_factory=dict)
    _used: set[Hashable] = field(default_factory=set)

    def schedule(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Return `mod` with scheduled functions, and fill in `stored` and `scopes`.

        A backend without kernels gets the unscheduled functions that kernels are compared with.

        Raises
        ------
        BrokenFunctionsError
            Some functions cannot be scheduled.
        """
        scheduled = copy_of(mod)
        failures = Failures()
        for var, func in mod.functions_items():
            name = str(var.name_hint)
            if not self.target.backend.has_kernels:
                scheduled[var] = compute_in_single(func) if name in self.tasks else func
            elif isinstance(func, tirx.PrimFunc) and not is_scheduled(func):
                kernel = self._kernel(name, func, failures)
                scheduled[var] = func if kernel is None else kernel
        failures.check()
        return scheduled

    def _kernel(self, name: str, func: tirx.PrimFunc, failures: Failures) -> tirx.PrimFunc | None:
        task = self.tasks.get(name)
        config = None if task is None else self._config(task)
        if task is None or config is None:
            return failures.attempt(name, f"the kernel {name}", partial(self._by_tvm, func))
        what = f"the kernel {name} ({task.name})"
        kernel = failures.attempt(name, what, partial(self._by_family, task, config))
        if kernel is None:
            return None
        self._note_weights(name, kernel, task, config)
        kernel = with_slices(kernel, slices_of(func))
        symbol = func.attrs.get("global_symbol", None)
        kernel = kernel.with_attr("global_symbol", symbol) if symbol else kernel.without_attr("global_symbol")
        return kernel.with_attr("tirx.is_scheduled", True)

    def _config(self, task: TunableTask) -> Config | None:
        config = self.configs[task.key] if task.key in self.configs else task.default_config(self.target)
        # TVM's schedules cannot read images.
        return task.default_config(self.target) if config is None and task.template.images else config

    def _note_weights(self, name: str, kernel: tirx.PrimFunc, task: TunableTask, config: Config) -> None:
        params = [str(param.name) for param in kernel.params]
        scopes = task.image_scopes(config, self.target)
        placed = task.template.images  # activations, whose scope the graph decides
        images = {params.index(param): scopes[param] for param in params if param in scopes and param not in placed}
        if images:
            self.scopes[name] = images
        weight = task.stored_weight(config)
        if weight is not None:
            self.stored[name] = (params.index(weight.name), weight)

    def _by_family(self, task: TunableTask, config: Config) -> tirx.PrimFunc:
        # Functions with one key may be written otherwise, for example with their parameters in another order.
        key = (task.structure, config, str(self.target))
        if key not in self.kept.scheduled:
            self.kept.scheduled[key] = task.schedule(config, self.target)["main"]
        return self._unshared(key)

    def _by_tvm(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """Schedule a function by TVM's rules, or by the simplest schedule if the function is marked for it."""
        key = (structure_of(func), str(self.target))
        if key not in self.kept.scheduled:
            is_plain = func.attrs is not None and func.attrs.get(RUNG, 0) >= Rung.PLAIN
            if is_time_loop(func):  # no nest of loops that rules match
                self.kept.scheduled[key] = schedule_time_loop(func, self.target.limits)
            else:
                rule = simplest_schedule if is_plain else default_schedule
                self.kept.scheduled[key] = rule(func, self.target)
        return self._unshared(key)

    def _unshared(self, key: Hashable) -> tirx.PrimFunc:
        """Return the cached kernel, from its second use on as a copy: functions of one module share no variables."""
        kernel = self.kept.scheduled[key]
        is_first = key not in self._used
        self._used.add(key)
        return kernel if is_first else s_tir.renew_defs(kernel)
