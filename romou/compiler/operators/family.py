"""The operator family: all that Romou knows about one kind of operator, as one object in one file of
`romou/compiler/operators/families`.

    Relax graph ──rewrite──> plain definition ──fusion──> fused function ──template_of──> Template ──> space, schedule

Layout, tasks, scripts and one contract test walk the families (`romou.compiler.operators.families.families`). Of them
`layout/join_pairs.py` alone knows one by
name: the pair of convolutions, which is an operator of no graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tvm
from tvm import relax, tirx

from romou.compiler.operators.base import Template
from romou.compiler.tir.expressions import Shape


class Graph(Protocol):
    """A Relax graph whose operators are being rewritten, as far as a family asks it
    (`romou/compiler/graph/pack_channels.py`).

    bb: builder of the new graph.
    Of variables of the old graph: bound:
        ->  what it is bound to.   users: -> the variables that read it.   rewritten: -> the family that took it.
    """

    bb: relax.BlockBuilder
    bound: dict[relax.Var, relax.Expr]
    users: dict[relax.Var, Sequence[relax.Var]]
    rewritten: dict[relax.Var, Family]

    def plain_expr(self, expr: relax.Expr) -> relax.Expr:
        """The new form of an expression, in the layout that it has in the old graph."""

    def packed_expr(self, expr: relax.Expr) -> relax.Expr:
        """The new form of a tensor (n, c, h, w) as (n, ceil(c / 4), h, w, 4); rows and volumes are images
        (`romou/compiler/tir/images.py`).
        """

    def flattened_source(self, expr: relax.Expr) -> relax.Var | None:
        """The packed tensor (n, c, h, w) of which an expression is the reshape to (n, c * h * w); None for any other
        expression.
        """


@dataclass(frozen=True, kw_only=True)
class Case:
    """A small operator of a family, as a user's model has it and as NumPy computes it.

    inputs, weights: shapes of what is given at run time and of constants.
    build: the Relax expression of variables and constants, in that order.   compute: the same of arrays.
    """

    name: str
    inputs: Sequence[Shape]
    weights: Sequence[Shape] = ()
    build: Callable[..., relax.Expr]
    compute: Callable[..., np.ndarray]

    def module(self, weights: Sequence[np.ndarray] = (), dtype: str = "float32") -> tvm.IRModule:
        """A Relax module whose `main` maps inputs of `dtype`, which is that of the weights, to the operator's result."""  # noqa: E501
        inputs = [relax.Var(f"x{i}", relax.TensorType(list(shape), dtype)) for i, shape in enumerate(self.inputs)]
        builder = relax.BlockBuilder()
        with builder.function("main", inputs):
            with builder.dataflow():
                output = builder.emit_output(builder.emit(self.build(*inputs, *map(relax.const, weights))))
            builder.emit_func_output(output)
        return builder.finalize()


class Family(ABC):
    """An operator family.

    name: in records, block annotations and tasks.
    precedence: families are asked in this order, those of equal precedence by name; one that takes what others leave
    has a higher number.
    operators: names of the Relax operators that `rewrite` may recognise.
    is_packed: whether the results of `rewrite` have their channels packed by four.
    """

    name: str
    precedence: int = 0
    operators: frozenset[str] = frozenset()
    is_packed: bool = False

    def rewrite(self, call: relax.Call, graph: Graph) -> relax.Expr | None:
        """The family's plain definition in place of a call of one of `operators`; None where the call is not the
        family's.
        """
        return None

    @abstractmethod
    def template_of(self, func: tirx.PrimFunc) -> Template | None:
        """The schedule template of a fused function; None where the function is not the family's."""

    @property
    @abstractmethod
    def cases(self) -> Sequence[Case]:
        """Typical operators, small enough for tests."""
