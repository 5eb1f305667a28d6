"""What every schedule template offers. Later stages know nothing else about an operator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import tvm
from tvm import tirx

from romou.base.knob import Knob
from romou.base.limits import Limits
from romou.base.space import Config, Space
from romou.compiler.operators.winograd.convolution import StoredWeight
from romou.compiler.tir.primitives import is_image


class Template(ABC):
    """The template that fits a fused function, whose last parameter is the output.

    func: the function.   family: name of the operator family.
    knobs: what the template leaves open, for any operator and device; `space` says which choices an operator has.
    """

    knobs: ClassVar[tuple[Knob, ...]]

    func: tirx.PrimFunc
    family: str
    # Whether the kernel is a loop of multiply-adds, of which each iteration reads its share of data and weight.
    sums_products: bool = True

    @property
    @abstractmethod
    def name(self) -> str:
        """Readable name of the operator."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Operations on numbers of one call."""

    @property
    @abstractmethod
    def names(self) -> Mapping[str, str]:
        """Names of the parameters that are the operator's "data", "output" and, where it has one, "weight"."""

    @property
    @abstractmethod
    def activations(self) -> set[str]:
        """Parameters besides the weight that may lie in images: the schedule accesses them as whole texels."""

    @property
    def matrices(self) -> set[str]:
        """Parameters, the output among them, that may lie in images of rows: the schedule takes their last axis in
        whole texels.
        """
        return set()

    @property
    def factors(self) -> set[str]:
        """Parameters among `matrices` that are factors of products, of which each number is read many times."""
        return set()

    @property
    @abstractmethod
    def element_bytes(self) -> int:
        """Bytes of one number of the output in memory."""

    @abstractmethod
    def space(self, limits: Limits) -> Space:
        """The knobs of this operator on a device with these limits."""

    @abstractmethod
    def default_config(self, limits: Limits) -> Config:
        """The config that is tried first and used where nothing was tuned."""

    def starts(self, limits: Limits) -> list[Config]:
        """A decent config of each algorithm, the default config first."""
        return [self.default_config(limits)]

    def direct(self, config: Config) -> Config:
        """Return `config` with the algorithm that has neither workspaces nor larger weights."""
        return config

    def with_fp32_sums(self, config: Config) -> Config:
        """Return `config` with sums in fp32. It may then be outside of the template's space."""
        return config

    def stored_weight(self, config: Mapping[str, Any]) -> StoredWeight | None:
        """How the kernel of `config` wants the weight; None where it takes that of the function as it is."""
        return None

    def precision(self, config: Mapping[str, Any]) -> str | None:
        """What the kernel of `config` rounds its factors to; None where it multiplies numbers as they lie in memory."""
        return None

    @abstractmethod
    def schedule(self, config: Config, limits: Limits) -> tvm.IRModule:
        """Scheduled TIR for a config: a module with the one function `main`; InvalidConfigError where TVM's scheduler
        refuses the config.
        """

    @property
    def images(self) -> dict[str, str]:
        """Parameter name -> memory scope, for the activations that the graph put in images."""
        return {str(p.name): str(p.scope()) for p in self.func.params if is_image(p)}

    def image_scopes(self, config: Config, limits: Limits) -> dict[str, str]:
        """Parameter name -> memory scope, for the parameters that lie in images under `config`."""
        return self.images

    def kept_in_buffers(self, limits: Limits) -> dict[str, str]:
        """Data, weight or output that the schedule could read from an image but that fits into none -> why."""
        return {}
