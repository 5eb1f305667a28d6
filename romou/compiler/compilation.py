"""A model on its way through the compiler, as one object.

    ONNX --import_model--> Compilation.of    the Relax module
                             .lowered        fused functions, and the tasks among them
                             .with_configs   a config for each task
                             .within         other configs, if the model takes too much memory
                             .assembled      a program of TVM's virtual machine

Each step returns the next state and changes nothing. `with_default_kernels` runs them all with default configs. If a
step cannot compile some nodes, these fall back to other kernels (romou.compiler.fallback) and the step is repeated.

Code that runs, times or checks a model is in `romou.driver`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.errors import NumericError, UsageError
from romou.base.space import Config
from romou.base.variants import VARIANTS
from romou.compiler.assembly.assemble import (
    CompiledModel,
    ScheduledFunction,
    compile_model,
    schedule_model,
    scheduled_functions,
)
from romou.compiler.assembly.build import Kept
from romou.compiler.budget import leaner_config
from romou.compiler.fallback import FINAL_ERRORS, Fallbacks
from romou.compiler.frontend.imported import ImportedModel
from romou.compiler.frontend.precision import Precision
from romou.compiler.graph.memory.memory import MemoryPlan, plan_memory
from romou.compiler.importing import import_onnx
from romou.compiler.lowering import LoweredModel, lower
from romou.compiler.operators.families import template_of
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from tvm_patches.quiet import quiet_stderr

if TYPE_CHECKING:
    import onnx

logger = logging.getLogger("romou")


def import_model(
    model: onnx.ModelProto | str | Path | ImportedModel,
    shapes: Mapping[str, Sequence[int]] | None,
    precision: Precision | None = None,
) -> ImportedModel:
    """Import an ONNX model.

    A model of `romou.training.gradients` or `romou.operators` is imported already and is returned as it is.
    """
    if isinstance(model, ImportedModel):
        if shapes or (precision is not None and precision != Precision()):
            raise UsageError("shapes and precision of an imported model are fixed", hint="Give them where it is made.")
        return model
    with quiet_stderr():
        return import_onnx(model, shapes, precision)


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """A model and how far it is compiled for a target.

    fallbacks: the imported model, and the nodes that fell back to other kernels.
    target: the target within the limits of the device.
    kernels: a cache of scheduled and lowered functions, shared by all states.
    configs: task key -> config. None leaves a task to TVM's schedules. A missing task has its default config.
    program: the assembled model, or None before `assembled`.
    """

    fallbacks: Fallbacks
    target: Target
    kernels: Kept = field(default_factory=Kept, repr=False)
    configs: Mapping[str, Config | None] = field(default_factory=dict)
    program: CompiledModel | None = None
    _lowered: LoweredModel | None = None

    @classmethod
    def of(cls, imported: ImportedModel, target: Target, *, is_strict: bool = False) -> Compilation:
        """Return the first state: an imported model, not lowered yet. is_strict: no node may run on the host."""
        template_of.cache_clear()  # its entries hold functions of earlier models
        return cls(fallbacks=Fallbacks(imported=imported, target=target, is_strict=is_strict), target=target)

    def of_part(self, part: ImportedModel, target: Target) -> Compilation:
        """Return the first state of a model of some of this model's nodes, which keep their fallbacks."""
        template_of.cache_clear()
        return Compilation(fallbacks=self.fallbacks.of_part(part, target), target=target, kernels=self.kernels)

    def for_target(self, target: Target) -> Compilation:
        """Return this state for another target with the same tasks, for example for another host."""
        return replace(self, target=target, program=None, kernels=Kept())

    def check_variant(self) -> None:
        """Raise UsageError if the target names a variant that none of the model's operators has."""
        name = self.target.limits.variant
        if name is None or any(task.template.has_variant(self.target.limits) for task in self.tasks):
            return
        tasks = [task.with_free_images().template for task in self.tasks]
        limits = {other: self.target.with_options(variant=other).limits for other in VARIANTS}
        possible = [other for other in VARIANTS if any(template.has_variant(limits[other]) for template in tasks)]
        raise UsageError(
            f"no operator has the variant {name!r} on {self.target.with_options(variant=None)}; possible:"
            f" {', '.join(possible) or 'none'}",
            hint=f"{name} is for {VARIANTS[name].windows.value}.",
            variant=name,
            possible=possible,
        )

    # The steps

    def lowered(self) -> Compilation:
        """Lower the imported model to fused functions and find the tasks among them. Nothing is built."""
        return self._with_fallbacks(Compilation._lower)._announced()

    def with_default_kernels(self) -> Compilation:
        """Lower and assemble the imported model with default configs. Nodes fall back until that is possible.

        Raises
        ------
        ModelError
            Some nodes have no kernel, and they may not run on the host or onnxruntime does not run them either.
        BuildError
            A step fails for no node in particular.
        """
        return self._with_fallbacks(lambda state: state._lower().assembled())._announced()

    def joined_where(self, is_chosen: Callable[[str], bool]) -> Compilation:
        """Join the chains with a task key that satisfies `is_chosen` into one kernel each, and no others.

        Return the lowered model with new tasks, or this state itself if nothing changes.
        """
        return self._with_functions(self.functions.joined_where(is_chosen))

    def joined_where_faster(self, seconds: Mapping[str, float]) -> Compilation:
        """Join each chain that is faster as one kernel. seconds: task key -> time of its fastest kernel."""
        return self._with_functions(self.functions.joined_where_faster(seconds))

    def joined_at(self, places: Sequence[int]) -> Compilation:
        """Join the chains at these positions into one kernel each, as far as the model has them, and no others."""
        keys = {chain.task.key for place, chain in enumerate(self.functions.chains) if place in places}
        return self.joined_where(keys.__contains__)

    def with_configs(self, configs: Mapping[str, Config | None]) -> Compilation:
        """Return the lowered model with configs for its tasks (task key -> config)."""
        return self if configs == self.configs else replace(self, configs=configs, program=None)

    def within(self, max_memory: int | None) -> Compilation:
        """Return a state that needs at most `max_memory` bytes, and no tensor larger than the device's largest buffer.

        Tasks change to a direct algorithm, the one with the largest workspaces first.

        Raises
        ------
        ModelError
            No configs of the tasks fit into `max_memory`.
        """
        if max_memory is None and self.target.limits.max_buffer_bytes is None:
            return self
        state = self
        while change := leaner_config(state.memory_plan(), self.task_of, state.configs, self.target, max_memory):
            key, config, size = change
            state = state.with_configs({**state.configs, key: config})
            text = "task %s gets a direct algorithm: the other one has workspaces or weights of %d bytes, which is too"
            logger.info(f"{text} much memory", key, size)
        return state

    def assembled(self) -> Compilation:
        """Schedule and build every kernel with its config, and link them into a program.

        Raises
        ------
        BrokenFunctionsError
            Some functions have no kernel.
        """
        if self.program is not None:
            return self
        program = compile_model(self.functions.fused, self.task_of, self.configs, self.target, self.kernels)
        return replace(self, program=replace(program, joined=self.functions.joined_places))

    def after_wrong_outputs(self, error: NumericError) -> Compilation | None:
        """Return the imported model with the first wrong operator, named by a check, on another kernel.

        None if the operator has no other kernel.
        """
        fallbacks = self.fallbacks.after_wrong_outputs(error, self.functions)
        return None if fallbacks is None else self._restarted(fallbacks)

    # The parts of a state

    @property
    def imported(self) -> ImportedModel:
        return self.fallbacks.imported

    @property
    def functions(self) -> LoweredModel:
        """The fused functions."""
        assert self._lowered is not None, "`lowered` or `with_default_kernels` comes first"
        return self._lowered

    @property
    def tasks(self) -> list[TunableTask]:
        """The tasks of the fused functions."""
        return self.functions.tasks

    @property
    def task_of(self) -> dict[str, TunableTask]:
        """Function name -> task."""
        return self.functions.task_of

    @property
    def candidates(self) -> list[TunableTask]:
        """The tasks of the fused functions, separate and joined, in use or not."""
        return self.functions.candidates

    @property
    def alternatives(self) -> dict[str, tuple[str, ...]]:
        """Key of a joined task -> keys of the tasks that it replaces."""
        return self.functions.alternatives

    def memory_plan(self) -> MemoryPlan:
        """Return the device memory that the model needs with its configs. Nothing is built."""
        if self.program is not None:
            return self.program.memory
        return plan_memory(schedule_model(self.functions.fused, self.task_of, self.configs, self.target))

    def scheduled_functions(self) -> list[ScheduledFunction]:
        """Return the scheduled functions with their tasks and configs. Nothing is built."""
        return scheduled_functions(self.functions.fused, self.task_of, self.configs, self.target)

    # How a step falls back

    def _lower(self) -> Compilation:
        if self._lowered is not None:
            return self
        mod, suffix, has_sizes = self.imported.mod, self.imported.suffix, self.imported.has_sizes
        lowered = lower(mod, self.target, self.fallbacks.rungs, suffix, has_sizes=has_sizes)
        return replace(self, _lowered=lowered)

    def _with_functions(self, functions: LoweredModel) -> Compilation:
        return self if functions is self._lowered else replace(self, _lowered=functions, program=None)

    def _restarted(self, fallbacks: Fallbacks) -> Compilation:
        return replace(self, fallbacks=fallbacks, program=None, _lowered=None)

    def _with_fallbacks(self, step: Callable[[Compilation], Compilation]) -> Compilation:
        """Repeat a step until it succeeds. Each time, the nodes that it fails at fall back."""
        state = self
        while True:
            try:
                state = state._lower()
                return step(state)
            except FINAL_ERRORS:
                raise
            except Exception as error:  # by many types
                state = state._restarted(state.fallbacks.after_failure(error, state._lowered, state._build_part))

    def _build_part(self, part: Fallbacks) -> None:
        self._restarted(part)._lower().assembled()

    def _announced(self) -> Compilation:
        """Log fallbacks and tensors that stay in buffers.

        Raise ModelError if nodes fell to the host and may not run there.
        """
        self.fallbacks.check_strict()
        self.fallbacks.warn()
        limits = self.target.limits
        if self.target.lacks_image_sizes:
            hint = "-texture_spatial_limit=N says what it allows, -images=never that this is meant"
            text = "%s: the sizes of its images are not known, so every tensor stays in a buffer; %s"
            logger.warning(text, self.target.spec.title, hint)
        for task in self.tasks if limits.prefers_images else ():
            for name, reason in task.template.kept_in_buffers(limits).items():
                text = "%s: its %s stays in a buffer, an image cannot hold it: %s"
                logger.warning(text, task.name, name, reason)
        return self
