"""The interface of contractions for schedules. Families extend it by their use in graphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from typing import Generic, TypeVar

import numpy as np
from tvm import s_tir, te

from romou.base.space import Config
from romou.compiler.operators.algorithms.winograd.convolution import Winograd
from romou.compiler.operators.contraction import Contraction
from romou.compiler.operators.workload import Workload
from romou.compiler.scheduling.loops import Block, Loop

W = TypeVar("W", bound=Workload)


class Operator(ABC, Generic[W]):
    """A sum of products over workloads of type W.

    name: name of the family.
    workload: the type W.
    works_in_texels: whether data and output may be in images, because the schedule accesses whole texels.
    has_constant_weight: whether the second factor is known when the model is compiled.
    """

    name: str
    workload: type[W]
    works_in_texels: bool = False
    has_constant_weight: bool = True
    # Whether texels of the output are neighbours along its last axis, so that it may be in an image of rows.
    stores_rows: bool = False

    @abstractmethod
    def contraction(
        self, w: W, data: te.Tensor, weight: te.Tensor, flat: bool, is_zero_outside: bool = False
    ) -> Contraction:
        """Return the operator as a contraction, with its pixels in one row (`flat`) or row by row.

        is_zero_outside: whether reads outside of the data are zero, as in images.
        """

    @abstractmethod
    def output_loops(
        self, sch: s_tir.Schedule, output: Block, w: W, config: Config
    ) -> tuple[s_tir.Schedule, Sequence[Loop]]:
        """Return a schedule and the loops (o, h, w, lane) of its output block.

        The schedule is `sch`, or belongs to a new function.
        """

    def has_whole_texels(self, w: W) -> bool:
        """Return whether the four lanes of every output texel are stored."""
        return True

    def matrices(self, w: W) -> Set[str]:
        """Return the matrices among "data" and "weight" with a last axis that is read in whole texels."""
        return frozenset()

    def taken_weights(self, w: W) -> np.ndarray | None:
        """Return ones where the packed weight has numbers of the model, zeros where it is zero in any model.

        None if kernels read all of it.
        """
        return None

    def pixel_rows(self, w: W) -> int | None:
        """Return the rows of pixels that the knob `pixels` lays out. None without the knob."""
        return None

    def pieces(self, w: W) -> Sequence[int]:
        """Return the numbers of pieces, besides one, that a long sum may be cut into."""
        return ()

    def in_pieces(self, w: W, data: te.Tensor, weight: te.Tensor, count: int) -> Contraction:
        """Return the operator as `count` contractions, one for each row h, to be added up."""
        raise NotImplementedError(f"{self.name} has no pieces")

    def winograd(self, w: W) -> dict[str, Winograd]:
        """Return choice of the knob `algorithm` -> Winograd's algorithm."""
        return {}
