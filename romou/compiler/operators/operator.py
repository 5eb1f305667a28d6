"""What the schedule of a contraction asks of its operator: the half of a family that stands below its templates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from typing import Generic, TypeVar

from tvm import s_tir, te

from romou.base.space import Config
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.winograd.convolution import Winograd
from romou.compiler.operators.workload import Workload
from romou.compiler.scheduling.loops import Block, Loop

W = TypeVar("W", bound=Workload)


class Operator(ABC, Generic[W]):
    """A sum of products over workloads of type W.

    name: of the family.   workload: the type W.
    works_in_texels: whether data and output may lie in images, because the schedule accesses them in whole texels.
    has_constant_weight: whether the second factor is known when the model is compiled.
    """

    name: str
    workload: type[W]
    works_in_texels: bool = False
    has_constant_weight: bool = True
    # Whether texels of the output are neighbours along its last axis, so that it may lie in an image of rows.
    stores_rows: bool = False

    @abstractmethod
    def contraction(
        self, w: W, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        """The operator as a contraction, its pixels in one row (`flat`) or row by row, over data that reads as zero
        outside or does not.
        """

    @abstractmethod
    def output_loops(
        self, sch: s_tir.Schedule, output: Block, w: W, config: Config
    ) -> tuple[s_tir.Schedule, Sequence[Loop]]:
        """The output block's nest as loops (o, h, w, lane), and the schedule that they belong to: `sch`, or one of a
        function made anew.
        """

    def has_whole_texels(self, w: W) -> bool:
        """Whether the four lanes of every output texel are stored."""
        return True

    def matrices(self, w: W) -> Set[str]:
        """Which of "data" and "weight" are matrices that the schedule reads in whole texels of their last axis."""
        return frozenset()

    def pixel_rows(self, w: W) -> int | None:
        """Rows of pixels that the knob `pixels` lays out; None for operators without the knob."""
        return None

    def pieces(self, w: W) -> Sequence[int]:
        """Numbers of pieces into which a long sum may be cut for work groups of their own, besides one."""
        return ()

    def in_pieces(self, w: W, data: te.Tensor, weight: te.Tensor, count: int) -> Contraction:
        """The operator as `count` contractions, one for each row h, whose results are to be added up."""
        raise NotImplementedError(f"{self.name} has no pieces")

    def winograd(self, w: W) -> dict[str, Winograd]:
        """The algorithms besides the direct one, by the choice of the knob `algorithm`."""
        return {}
