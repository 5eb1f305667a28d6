"""The interface of schedule templates: all that later stages see of an operator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import tvm
from tvm import tirx

from romou.base.errors import InvalidConfigError
from romou.base.knob import Knob
from romou.base.limits import Limits
from romou.base.space import Config, Space
from romou.compiler.operators.analysis.expressions import ASKED, LOCAL, array_bytes
from romou.compiler.operators.analysis.form import Form, UnknownForm
from romou.compiler.operators.workload import WORKLOAD, Workload
from romou.compiler.tir.expressions import bytes_of
from romou.compiler.tir.primitives import is_image
from romou.compiler.tir.traversal import nodes_in
from romou.devices.backends.launch import launch_size, thread_extents

# Registers for addresses and loop counters, besides a kernel's tiles.
ADDRESSES = 16


class StoredWeight(Protocol):
    """A weight in the form that a config's kernel reads. A call makes it of the packed weight."""

    @property
    def name(self) -> str:
        """Return the parameter's name."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape that the kernel reads."""

    def __call__(self, packed: np.ndarray) -> np.ndarray:
        """Return the packed weight as an array of `shape`."""


class Template(ABC):
    """The schedule template of a fused function. The function's last parameter is the output.

    func: the function.
    family: name of the operator family.
    knobs: all knobs of the template. `space` has the choices of an operator on a device.
    """

    knobs: tuple[Knob, ...]

    func: tirx.PrimFunc
    family: str
    # Whether the kernel is a loop of multiply-adds, whose iterations read data and weight.
    sums_products: bool = True
    # Annotation of a block with its workload, from which its definition follows.
    annotation: ClassVar[str] = WORKLOAD

    @property
    @abstractmethod
    def name(self) -> str:
        """Return a readable name of the operator."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Return the arithmetic operations of one call."""

    @property
    def names(self) -> Mapping[str, str]:
        """Return role -> parameter name, for "data", "output" and, if there is one, "weight"."""
        return {"data": str(self.func.params[0].name), "output": str(self.func.params[-1].name)}

    @property
    def activations(self) -> set[str]:
        """Return parameters besides the weight that may be in images: the schedule accesses whole texels of them."""
        return set()

    @property
    def matrices(self) -> set[str]:
        """Return parameters, perhaps the output, that may be in images of rows: the last axis is read in texels."""
        return set()

    @property
    def factors(self) -> set[str]:
        """Return the factors of products among `matrices`. Each of their numbers is read many times."""
        return set()

    @property
    def element_bytes(self) -> int:
        """Return the bytes of one number of the output in memory."""
        return int(tvm.DataType(str(self.func.params[-1].dtype)).itemsize)

    @abstractmethod
    def space(self, limits: Limits) -> Space:
        """Return the knobs of this operator on a device with these limits."""

    def form(self, limits: Limits) -> Form:
        """Return formulas of the kernels' usage over knobs. By default nothing is known before a kernel is lowered."""
        output = self.func.params[-1]
        return UnknownForm(self.names, bytes_of(output.shape, str(output.dtype)), self.element_bytes)

    @property
    def has_formulas(self) -> bool:
        """Return whether `form` gives the usage of a config's kernel, and so an estimate of its time."""
        return type(self).form is not Template.form

    def has_variant(self, limits: Limits) -> bool:
        """Return whether the operator has the variant of `limits`, so that its space is a part of the whole one."""
        return False

    def is_faster(self, limits: Limits, readers: int = 1) -> bool | None:
        """Return whether a joined kernel is taken to be faster than its parts, as long as neither is measured.

        None if the estimates of both decide.

        readers: joined kernels that replace the first part together.
        """
        return False

    @abstractmethod
    def default_config(self, limits: Limits) -> Config:
        """Return the config that is tried first, and used if nothing was tuned."""

    def starts(self, limits: Limits) -> list[Config]:
        """Return a decent config of each algorithm, the default config first."""
        return [self.default_config(limits)]

    def is_lean(self, config: Config) -> bool:
        """Return whether the config's algorithm has neither workspaces nor larger weights."""
        return True

    def with_fp32_sums(self, config: Config) -> Config:
        """Return `config` with sums in fp32. It may then be outside of the template's space."""
        return config

    def stored_weight(self, config: Mapping[str, Any]) -> StoredWeight | None:
        """Return the form of the weight that the kernel of `config` reads. None for the function's own form."""
        return None

    def with_zeros(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return values of the first parameters with zeros where a packed weight holds none of the model's numbers."""
        return list(arrays)

    def precision(self, config: Mapping[str, Any]) -> str | None:
        """Return the precision that the kernel of `config` rounds factors or sums to. None if it is the output's."""
        return None

    @abstractmethod
    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        """Return scheduled TIR for a config: a module with the function `main`.

        Raise InvalidConfigError if TVM's scheduler refuses the config.
        """

    def for_any_size(self, func: tirx.PrimFunc, work: Workload | None, config: Config, limits: Limits) -> tirx.PrimFunc:
        """Return a function whose extents are expressions of sizes, scheduled by a config of this function.

        func: this function, with expressions for the extents that follow from sizes (`bounds_of`).
        work: the numbers of a contraction, with the same expressions.

        Raises
        ------
        InvalidConfigError
            TVM's scheduler refuses the config, or a decision of it depends on a size.
        """
        raise InvalidConfigError(f"{self.name}: kernels of {self.family} have fixed extents")

    def configs_for_any_size(self, config: Config, limits: Limits) -> list[Config]:
        """Return configs like one of this template, the likest first, which `for_any_size` may take."""
        return [config]

    def ready_to_build(self, config: Config, limits: Limits) -> tirx.PrimFunc:
        """Return the function for a process that builds `config`: itself if that process can schedule it."""
        return self.func

    def excess(self, kernel: tirx.PrimFunc, limits: Limits) -> str | None:
        """Return how a lowered kernel exceeds the device's limits, or None.

        Formulas of `space` miss local memory of sums that are dealt out unevenly, for which TVM allocates up to twice.
        """
        size = launch_size(thread_extents(kernel))[1]
        arrays = [alloc.buffer for alloc in nodes_in(kernel.body, tirx.AllocBuffer)]
        local = sum(array_bytes(array) for array in arrays if str(array.scope()) in LOCAL)
        asks = any(str(array.scope()) == ASKED for array in arrays)
        most = (asks and limits.asked_local_memory_bytes) or limits.local_memory_bytes
        numbers = (
            (size, "work-items in a group", limits.max_work_group_size),
            (local, "bytes of local memory", most),
        )
        beyond = (f"{used} {what}, the device allows {limit}" for used, what, limit in numbers if used > limit)
        return next(beyond, None)

    @property
    def images(self) -> dict[str, str]:
        """Return parameter name -> memory scope, for the activations that the graph put in images."""
        return {str(p.name): str(p.scope()) for p in self.func.params if is_image(p)}

    def image_scopes(self, config: Config, limits: Limits) -> dict[str, str]:
        """Return parameter name -> memory scope, for the parameters in images under `config`."""
        return self.images

    def kept_in_buffers(self, limits: Limits) -> dict[str, str]:
        """Return role -> reason, for data, weight or output that could be in an image but fits into none."""
        return {}
