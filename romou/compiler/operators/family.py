"""The operator family: everything that Romou needs for one kind of operator, in one file of `operators/families`.

    Relax graph ──rewrite──> plain definition ──fusion──> fused function ──template_of──> Template ──> space, schedule

The graph passes, the tuner, scripts and one contract test loop over `romou.compiler.operators.families.families`. Only
`romou/compiler/graph/join_chains.py` names a family: the pair of convolutions, which is no operator of a graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tvm
from tvm import relax, tirx

from romou.compiler.operators.schedule_template import Template
from romou.compiler.tir.expressions import Shape, module_of


class Graph(Protocol):
    """A Relax graph that is being rewritten, as a family sees it (`romou/compiler/graph/pack_channels.py`).

    bb: builder of the new graph.
    bound: variable of the old graph -> the expression that it is bound to.
    users: variable of the old graph -> the variables that read it.
    rewritten: variable of the old graph -> the family that took it.
    """

    bb: relax.BlockBuilder
    bound: dict[relax.Var, relax.Expr]
    users: dict[relax.Var, Sequence[relax.Var]]
    rewritten: dict[relax.Var, Family]

    def plain_expr(self, expr: relax.Expr) -> relax.Expr:
        """Return the new form of an expression, in the layout that it has in the old graph."""

    def packed_expr(self, expr: relax.Expr) -> relax.Expr:
        """Return the new form of a tensor (n, c, h, w) as (n, ceil(c / 4), h, w, 4).

        Rows and volumes count as images (`romou/compiler/tir/images.py`).
        """

    def flattened_source(self, expr: relax.Expr) -> relax.Var | None:
        """Return the packed tensor (n, c, h, w) that `expr` reshapes to (n, c * h * w), or None if there is none."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A small operator of a family, as a Relax expression and in NumPy.

    inputs, weights: shapes of inputs at run time and of constants.
    build: variables and constants, in that order -> Relax expression.
    compute: the same arguments as arrays -> array.
    """

    name: str
    inputs: Sequence[Shape]
    weights: Sequence[Shape] = ()
    build: Callable[..., relax.Expr]
    compute: Callable[..., np.ndarray]

    def module(self, weights: Sequence[np.ndarray] = (), dtype: str = "float32") -> tvm.IRModule:
        """Return a Relax module with a `main` from inputs of `dtype`, the weights' type, to the result."""
        inputs = {f"x{i}": (shape, dtype) for i, shape in enumerate(self.inputs)}
        return module_of(inputs, lambda *variables: self.build(*variables, *map(relax.const, weights)))


class Family(ABC):
    """An operator family.

    name: in records, block annotations and tasks.
    precedence: families come in this order, then by name. A family that takes what other families leave has a
    higher number.
    operators: names of the Relax operators that `rewrite` may recognise.
    is_packed: whether the results of `rewrite` have their channels packed by four.
    """

    name: str
    precedence: int = 0
    operators: frozenset[str] = frozenset()
    is_packed: bool = False

    def rewrite(self, call: relax.Call, graph: Graph) -> relax.Expr | None:
        """Return the family's plain definition of a call of `operators`, or None for a call of another family."""
        return None

    @abstractmethod
    def template_of(self, func: tirx.PrimFunc) -> Template | None:
        """Return the schedule template of a fused function, or None for a function of another family."""

    @property
    @abstractmethod
    def cases(self) -> Sequence[Case]:
        """Typical operators, small enough for tests."""
