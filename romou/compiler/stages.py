"""A stage of the compiler: a pass, its reason, and the parts of the context that it reads. `pipeline.py` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import tvm

from romou.compiler.graph.join_pairs import Pair
from romou.compiler.graph.origins import Rungs

if TYPE_CHECKING:
    from romou.devices.targets import Target


@dataclass(frozen=True, kw_only=True)
class Context:
    """Inputs of stages besides the module.

    rungs: nodes that are computed in a simpler way, see `romou.driver.ladder`.
    pairs: functions that share a kernel.
    """

    target: Target
    rungs: Rungs = field(default_factory=dict)
    pairs: Sequence[Pair] = ()


@dataclass(frozen=True)
class Stage:
    """One line of a pipeline.

    run: a pass of TVM, or a function of a module and of the fields `reads` of the context.
    """

    run: Callable[..., tvm.IRModule]
    reason: str
    reads: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the pass or the function."""
        if isinstance(self.run, tvm.transform.Pass):
            return str(self.run.info.name).rsplit(".", 1)[-1]
        return self.run.__name__

    def __call__(self, mod: tvm.IRModule, context: Context) -> tvm.IRModule:
        return self.run(mod, *(getattr(context, name) for name in self.reads))


def stage(run: Callable[..., tvm.IRModule], reason: str, *reads: str) -> Stage:
    """Return the stage that runs `run` with the fields `reads` of the context."""
    return Stage(run, reason, reads)


def run(stages: Iterable[Stage], mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Run the stages one after the other."""
    for each in stages:
        mod = each(mod, context)
    return mod
