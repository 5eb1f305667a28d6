"""The fallback of nodes without a right kernel: they go a rung down, and all other nodes keep their kernels.

    fused function

            ->  its operators by themselves -> TVM's schedule rules -> TVM's simplest schedule -> the ONNX node on the host     (romou.base.rung)

A failure names functions or nodes. The variables of the graph name the ONNX nodes that they come from
(romou.compiler.tir.origin), so a function leads to its nodes. A step that fails as a whole is repeated with fewer nodes
until one is found. Nodes of an fp16 model are tried in fp32 before they go to the host.
"""  # noqa: E501

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from romou.base.environment import variable
from romou.base.errors import (
    BrokenFunctionsError,
    BrokenModelError,
    BrokenNodesError,
    CompatError,
    DeviceError,
    ModelError,
    NumericError,
    RomouError,
    UsageError,
)
from romou.base.fault import own_fault
from romou.base.rung import Rung
from romou.compiler.frontend import ImportedModel
from romou.compiler.frontend.fp16 import first_output
from romou.compiler.frontend.host_groups import Values, node_name, split
from romou.compiler.frontend.prefix import first_failing, first_nodes
from romou.compiler.frontend.to_host import in_fp32, with_nodes_on_host
from romou.compiler.frontend.to_relax import to_relax
from romou.compiler.graph.origins import function_origins
from romou.compiler.operators.families import RUNG, template_of
from romou.devices.targets import Target
from romou.driver.lowered import Graph, Moved, lowered
from romou.runtime.module import Kept
from tvm_patches.quiet import quiet_stderr

if TYPE_CHECKING:
    from romou.runtime.module import TunedModel

logger = logging.getLogger("romou")

# How often a model that is wrong is made anew, at most.
_MOST_STEPS = 8

# Names in a message, and characters of a reason.
_SHOWN, _REASON = 8, 300
# What no rung helps against.
_FINAL = (BrokenModelError, UsageError, DeviceError, CompatError)
_HOW = {
    Rung.APART: "no kernel for %s together: each is one by itself%s",
    Rung.RULES: "no kernel of Romou's for %s: they have TVM's schedule%s",
    Rung.PLAIN: "no kernel of Romou's for %s: they have TVM's simplest schedule, which is slow%s",
    Rung.HOST: "no kernels for %s: they run on the host, by onnxruntime, between kernels%s",
}


class Ladder:
    """A model on its way to kernels, and the rung of each node that fell.

    imported: with the nodes on the host that are there now.
    rungs: of nodes by their first outputs; all others have their kernel.
    """

    def __init__(self, imported: ImportedModel, target: Target, *, strict: bool = False) -> None:
        # Its entries hold the functions of the models before.
        template_of.cache_clear()
        self.imported = imported
        self.rungs: dict[str, Rung] = {}
        self.kept = Kept()
        self._target, self._strict = target, strict
        self._moved: dict[frozenset[str], Moved] = {}
        self._fp32: set[str] = set()
        self._faults: set[str] = set()
        self._graph: Graph | None = None

    def of_part(self, imported: ImportedModel, target: Target) -> Ladder:
        """Return a ladder for a model of some of the nodes, which stand on the rungs that they have here; what is built
        for one serves the other.
        """
        part = Ladder(imported, target, strict=self._strict)
        part.kept, part.rungs = self.kept, dict(self.rungs)
        on_host = {node for node, rung in self.rungs.items() if rung == Rung.HOST}
        if on_host:
            part.imported = with_nodes_on_host(imported, on_host)
        return part

    def lowered(self) -> Graph:
        """The graph with the nodes on their rungs; nodes at which a step of the graph fails go down. Nothing is
        compiled.
        """
        while True:
            try:
                return self._lowered()
            except _FINAL:
                raise
            except Exception as error:  # by many types
                self._step(error)

    def compiled(self) -> Graph:
        """The graph, compiled with default configs; nodes go down until that is possible.

        Raises
        ------
        ModelError
            Some nodes have no kernel, and `strict` lets nothing run on the host, or onnxruntime does not run them
            either.
        BuildError
            A step fails for no node in particular.
        """
        while True:
            try:
                return self._lowered().with_default_kernels(self._target, self.kept)
            except _FINAL:
                raise
            except Exception as error:  # by many types
                self._step(error)

    def tell(self) -> None:
        """Warn of all nodes that moved."""
        for rung, text in _HOW.items():
            nodes = sorted(
                {
                    node
                    for one in self._moved.values()
                    if one.rung == rung
                    for node in one.nodes
                    if self.rungs.get(node) == rung
                }
            )
            reasons = list(dict.fromkeys(one.reason for one in self._moved.values() if one.rung == rung and one.reason))
            names = (
                [name for group in self.imported.host_groups for name in group]
                if rung == Rung.HOST
                else self._named(nodes)
            )
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                logger.warning(
                    text, ", ".join(names[:_SHOWN]) + more, f" ({'; '.join(reasons)[:_REASON]})" if reasons else ""
                )

    def check_strict(self) -> None:
        """ModelError where nodes run on the host and `strict` forbids it; says why they do."""
        nodes = [name for group in self.imported.host_groups for name in group]
        if nodes and self._strict:
            reasons = "; ".join(dict.fromkeys(one.reason for one in self._moved.values() if one.rung == Rung.HOST))
            why = f" ({reasons[:_REASON]})" if reasons else ""
            raise ModelError(
                f"no kernels for {', '.join(nodes)}{why}; strict=True lets nothing run on the host", nodes=nodes
            )

    def step_down(self, error: NumericError) -> bool:
        """Move the operator that a check names as the first wrong one to the next rung; False where that is none, or
        not allowed.

        In a model that became fp16 it does not go to the host: what fp16 is too coarse for is not a kernel's fault.
        """
        nodes = self._nodes_behind(error)
        if not nodes or variable("ROMOU_NO_FALLBACK") == "1":
            return False
        here = max(self.rungs.get(node, Rung.FUSED) for node in nodes)
        origins = {} if self._graph is None else function_origins(self._graph.fused)
        rung = min(
            (self._next(function, here) for function, origin in origins.items() if origin & nodes), default=Rung.HOST
        )
        if here == Rung.HOST or (rung == Rung.HOST and (self._strict or self.imported.unconverted is not None)):
            return False
        logger.error("%s; its kernel gives way to another one. Please report it", error.message)
        self._move(nodes, rung, f"its kernel is wrong: {error.message}"[:_REASON], error)
        return True

    def _nodes_behind(self, error: NumericError) -> frozenset[str]:
        """The imported nodes, by their first outputs, that make what a node of the user's model makes, or what is made
        of that.
        """
        model, known = (
            self.imported.onnx_model,
            {name: first_output(node) for node in self.imported.folded.graph.node for name in node.output if name},
        )
        wrong = [
            node
            for node in (model.graph.node if model is not None else ())
            if (node.name or ", ".join(node.output)) == error.node
        ]
        names = {name for node in wrong for name in node.output}
        while names and not any(here in known for name in names for here in (name, f"{name}_fp16")):
            assert model is not None
            names = {name for node in model.graph.node if names & set(node.input) for name in node.output} - names
        return frozenset(known[here] for name in names for here in (name, f"{name}_fp16") if here in known)

    def _lowered(self) -> Graph:
        moved = tuple(
            replace(one, rung=rung, nodes=nodes) for one in self._moved.values() for rung, nodes in self._left(one)
        )
        self._graph = None
        self._graph = lowered(self.imported, self._target, self.rungs, moved)
        return self._graph

    def _left(self, one: Moved) -> list[tuple[Rung, frozenset[str]]]:
        """Nodes of an earlier step that are still where it put them."""
        nodes = frozenset(node for node in one.nodes if self.rungs.get(node) == one.rung)
        return [(one.rung, nodes)] if nodes else []

    def _step(self, error: Exception) -> None:
        """Move the nodes at which a step failed; raises the error where none can be found, or that is not allowed."""
        self._refuse_own_fault(error)
        if isinstance(error, BrokenFunctionsError):
            origins = error.origins if self._graph is None else function_origins(self._graph.fused)
            moves: dict[tuple[Rung, str], tuple[set[str], Exception]] = {}
            for function, reason in error.functions.items():
                nodes = origins.get(function, frozenset())
                if not nodes:
                    raise error
                rung = self._next(function, max(self.rungs.get(node, Rung.FUSED) for node in nodes))
                moves.setdefault((rung, _reason(reason)), (set(), reason))[0].update(nodes)
            for (rung, text), (chosen, one) in moves.items():
                self._move(frozenset(chosen), rung, text, one)
            return
        nodes = error.nodes if isinstance(error, BrokenNodesError) and error.nodes else self._first_failing(error)
        is_lower = all(self.rungs.get(node, Rung.FUSED) < Rung.RULES for node in nodes)
        self._move(
            nodes, Rung.RULES if isinstance(error, BrokenNodesError) and is_lower else Rung.HOST, _reason(error), error
        )

    def _next(self, function: str, rung: Rung) -> Rung:
        """The next rung that changes the kernel of a function whose lowest node stands on `rung`."""
        if rung < Rung.APART and function.startswith("fused_"):
            return Rung.APART
        if rung < Rung.RULES and (self._graph is None or function in self._graph.task_of):
            return Rung.RULES
        assert self._graph is not None, "functions without a family have no template that could fail"
        func = self._graph.fused[function]
        has_kernels = self._target.backend.has_kernels
        return (
            Rung.PLAIN
            if has_kernels and rung < Rung.PLAIN and not (func.attrs and func.attrs.get(RUNG, 0) >= Rung.PLAIN)
            else Rung.HOST
        )

    def _move(self, nodes: frozenset[str], rung: Rung, reason: str, error: Exception) -> None:
        if rung == Rung.HOST:
            if self.imported.onnx_model is None:
                raise error  # gradients, and single operators: no ONNX node does what their functions do
            if self.imported.unconverted is not None and not nodes <= self._fp32:
                self._fp32 |= nodes
                try:
                    with quiet_stderr():
                        self.imported = in_fp32(self.imported, nodes)
                except ModelError:
                    pass
                else:
                    self.rungs = {name: there for name, there in self.rungs.items() if name not in nodes}
                    return
            if self._strict:
                names = self._named(nodes)
                raise ModelError(
                    f"no kernels for {', '.join(names)} ({reason}); strict=True lets nothing run on the host",
                    nodes=names,
                ) from error
            try:
                with quiet_stderr():
                    self.imported = with_nodes_on_host(self.imported, nodes)
            except ModelError as problem:
                raise error from problem
        self.rungs.update((node, rung) for node in nodes)
        self._moved[nodes] = Moved(nodes=nodes, rung=rung, reason=reason)

    def _refuse_own_fault(self, error: Exception) -> None:
        errors = list(error.functions.values()) if isinstance(error, BrokenFunctionsError) else [error]
        if variable("ROMOU_NO_FALLBACK") == "1":
            raise error
        places = dict.fromkeys(place for one in errors if (place := own_fault(one)) is not None)
        if places and self._strict:
            raise error
        for place in places.keys() - self._faults:
            self._faults.add(place)
            logger.error(
                "a fault at %s, which is no limit of the model: %s; the nodes that it hits get other kernels. Please"
                " report it",
                place,
                _reason(error),
            )

    def _first_failing(self, error: Exception) -> frozenset[str]:
        """The first node with which the graph fails as a whole; the error is raised where that is on the host already."""  # noqa: E501
        model, target = self.imported.folded, self._target
        if self.imported.onnx_model is None:
            raise error
        values = Values(model)

        def fails(count: int) -> bool:
            try:
                parts = split(first_nodes(model, count, values), {i for i in self.imported.on_host if i < count})
                part = replace(self.imported, mod=to_relax(parts.model))
                lowered(part, target, self.rungs).with_default_kernels(target, self.kept)
            except _FINAL:
                raise
            except Exception:  # by many types
                return True
            return False

        with quiet_stderr():
            at = first_failing(len(model.graph.node), fails)
        if at in self.imported.on_host:
            raise error
        return frozenset({first_output(model.graph.node[at])})

    def _named(self, nodes: Collection[str]) -> list[str]:
        """Names for a person, in the graph's order."""
        return [node_name(node) for node in self.imported.folded.graph.node if first_output(node) in nodes]


def _reason(error: Exception) -> str:
    """Return an error's message in one line, without its hint."""
    return " ".join((error.message if isinstance(error, RomouError) else str(error)).split())[:_REASON]


def until_right(
    ladder: Ladder, model: TunedModel, make: Callable[[], TunedModel], check: Callable[[TunedModel], None]
) -> TunedModel:
    """The model, or the one that `make` makes when wrong operators have moved down, that passes a check.

    Raises
    ------
    NumericError
        The first one of the check, where no rung helps.
    """
    first: NumericError | None = None
    for _ in range(_MOST_STEPS):
        try:
            check(model)
        except NumericError as error:
            first = first or error
            if not ladder.step_down(error):
                raise first from None
            model.release()
            model = make()
        else:
            return model
    assert first is not None
    raise first
