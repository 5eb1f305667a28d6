"""Other kernels for the nodes of a model that a step of the compiler fails at. All other nodes keep theirs.

    fused function -> its operators apart -> TVM's schedule rules -> TVM's simplest schedule -> ONNX node on the host

Each arrow is a step down by one rung (romou.base.rung). A failure names functions or nodes. The graph's variables name
the ONNX nodes that they come from (romou.compiler.tir.origin), so a function leads to its nodes. If a step fails for no
node in particular, bisection finds the first node that it fails with. Nodes of a model that was converted to fp16 are
tried in fp32 before they go to the host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from romou.base import errors
from romou.base.environment import variable
from romou.base.fault import mistake, own_fault
from romou.base.rung import Rung
from romou.compiler.frontend.host_groups import Values, node_name, split
from romou.compiler.frontend.imported import ImportedModel
from romou.compiler.frontend.onnx_graph import first_output
from romou.compiler.frontend.prefix import first_failing, first_nodes
from romou.compiler.frontend.to_host import in_fp32, with_nodes_on_host
from romou.compiler.frontend.to_relax import to_relax
from romou.compiler.graph.origins import function_origins
from romou.compiler.lowering import LoweredModel
from romou.compiler.operators.families import RUNG
from romou.devices.targets import Target
from tvm_patches.quiet import quiet_stderr

logger = logging.getLogger("romou")

# Errors that another kernel cannot avoid.
FINAL_ERRORS = (errors.BrokenModelError, errors.UsageError, errors.DeviceError, errors.CompatError)

_MOST_NAMES = 8
_MOST_CHARACTERS = 300
_WARNINGS = {
    Rung.APART: "no kernel for %s together: each is one by itself%s",
    Rung.RULES: "no kernel of Romou's for %s: they have TVM's schedule%s",
    Rung.PLAIN: "no kernel of Romou's for %s: they have TVM's simplest schedule, which is slow%s",
    Rung.HOST: "no kernels for %s: they run on the host, by onnxruntime, between kernels%s",
}


@dataclass(frozen=True, kw_only=True)
class Move:
    """A step down of some nodes.

    nodes: their first outputs.
    rung: how they are computed from now on.
    reason: the error's message in one line.
    """

    nodes: frozenset[str]
    rung: Rung
    reason: str


@dataclass(frozen=True, kw_only=True)
class Fallbacks:
    """An imported model, and how each of its nodes is computed. Immutable: each step down returns the next state.

    imported: the model. Nodes that fell to the host already run there.
    is_strict: nothing may run on the host.
    rungs: first output of a node -> its rung. Other nodes have their fused kernel.
    moves: all steps down, in order.
    tried_in_fp32: nodes of an fp16 model that were converted back to fp32.
    reported_faults: places in Romou's code whose errors are logged already.
    """

    imported: ImportedModel
    target: Target
    is_strict: bool = False
    rungs: Mapping[str, Rung] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    tried_in_fp32: frozenset[str] = frozenset()
    reported_faults: frozenset[str] = frozenset()

    def of_part(self, part: ImportedModel, target: Target) -> Fallbacks:
        """Return the state of a model of some of the nodes, each on the rung that it has here."""
        on_host = {node for node, rung in self.rungs.items() if rung == Rung.HOST}
        imported = with_nodes_on_host(part, on_host) if on_host else part
        return Fallbacks(imported=imported, target=target, is_strict=self.is_strict, rungs=self.rungs)

    @property
    def current_moves(self) -> tuple[Move, ...]:
        """Moves of nodes that have not moved again since, with these nodes only."""
        still = [replace(move, nodes=frozenset(filter(self._has_rung(move.rung), move.nodes))) for move in self.moves]
        return tuple(move for move in still if move.nodes)

    def after_failure(
        self, error: Exception, lowered: LoweredModel | None, builds: Callable[[Fallbacks], object]
    ) -> Fallbacks:
        """Move the nodes that a step failed at one rung down, and return the new state.

        error: the exception of the step. It is raised again if its nodes cannot be found, or may not move.
        lowered: the model that the step failed with, None if it was still being lowered.
        builds: lowers and builds a part of the model, and raises if that fails.
        """
        state = self._without_faults_of_ours(error)
        if isinstance(error, errors.BrokenFunctionsError):
            return state._after_broken_functions(error, lowered)
        named = error.nodes if isinstance(error, errors.BrokenNodesError) else frozenset()
        nodes = named or state._first_failing(error, builds)
        is_on_rules = any(self.rungs.get(node, Rung.FUSED) >= Rung.RULES for node in nodes)
        rung = Rung.RULES if isinstance(error, errors.BrokenNodesError) and not is_on_rules else Rung.HOST
        return state._moved(nodes, rung, _reason(error), error)

    def after_wrong_outputs(self, error: errors.NumericError, lowered: LoweredModel) -> Fallbacks | None:
        """Move the first wrong operator, named by a check, to its next rung, and return the new state.

        None if it has no next rung or may not take it. In a model that became fp16 it does not go to the host: fp16 may
        be too coarse for a node with right kernels.
        """
        nodes = self._nodes_behind(error)
        if not nodes or variable("ROMOU_NO_FALLBACK") == "1":
            return None
        lowest = max(self.rungs.get(node, Rung.FUSED) for node in nodes)
        functions = [name for name, origin in function_origins(lowered.fused).items() if origin & nodes]
        rung = min((self._next_rung(name, lowest, lowered) for name in functions), default=Rung.HOST)
        may_use_host = not self.is_strict and self.imported.unconverted is None
        if lowest == Rung.HOST or (rung == Rung.HOST and not may_use_host):
            return None
        logger.error("%s; its kernel gives way to another one. Please report it", error.message)
        reason = f"its kernel is wrong: {error.message}"[:_MOST_CHARACTERS]
        return self._moved(nodes, rung, reason, error)

    def check_strict(self) -> None:
        """Raise ModelError if nodes run on the host although `is_strict` forbids it."""
        nodes = [name for group in self.imported.host_groups for name in group]
        if nodes and self.is_strict:
            reasons = "; ".join(dict.fromkeys(move.reason for move in self.moves if move.rung == Rung.HOST))
            raise self._host_is_forbidden(nodes, reasons[:_MOST_CHARACTERS])

    def warn(self) -> None:
        """Log a warning for each rung that nodes are on."""
        for rung, text in _WARNINGS.items():
            moved = {node for move in self.current_moves if move.rung == rung for node in move.nodes}
            on_host = [name for group in self.imported.host_groups for name in group]
            names = on_host if rung == Rung.HOST else self._names_of(moved)
            if names:
                reasons = dict.fromkeys(move.reason for move in self.moves if move.rung == rung and move.reason)
                why = f" ({'; '.join(reasons)[:_MOST_CHARACTERS]})" if reasons else ""
                more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
                logger.warning(text, ", ".join(names[:_MOST_NAMES]) + more, why)

    def _has_rung(self, rung: Rung) -> Callable[[str], bool]:
        return lambda node: self.rungs.get(node) == rung

    def _after_broken_functions(self, error: errors.BrokenFunctionsError, lowered: LoweredModel | None) -> Fallbacks:
        origins = error.origins if lowered is None else function_origins(lowered.fused)
        moves: dict[tuple[Rung, str], tuple[set[str], Exception]] = {}
        for function, cause in error.functions.items():
            nodes = origins.get(function, frozenset())
            if not nodes:
                raise error
            lowest = max(self.rungs.get(node, Rung.FUSED) for node in nodes)
            rung = self._next_rung(function, lowest, lowered)
            moves.setdefault((rung, _reason(cause)), (set(), cause))[0].update(nodes)
        state = self
        for (rung, reason), (moved_nodes, cause) in moves.items():
            state = state._moved(frozenset(moved_nodes), rung, reason, cause)
        return state

    def _next_rung(self, function: str, rung: Rung, lowered: LoweredModel | None) -> Rung:
        """Return the next rung that changes a function's kernel. `rung` is the lowest rung of its nodes."""
        if rung < Rung.APART and function.startswith("fused_"):
            return Rung.APART
        if rung < Rung.RULES and (lowered is None or function in lowered.task_of):
            return Rung.RULES
        assert lowered is not None, "functions without a family have no template that could fail"
        func = lowered.fused[function]
        is_plain = bool(func.attrs) and func.attrs.get(RUNG, 0) >= Rung.PLAIN
        has_plain = self.target.backend.has_kernels and rung < Rung.PLAIN and not is_plain
        return Rung.PLAIN if has_plain else Rung.HOST

    def _moved(self, nodes: frozenset[str], rung: Rung, reason: str, error: Exception) -> Fallbacks:
        """Return the state with `nodes` on `rung`. Raises `error` if the host cannot run them."""
        state = self
        if rung == Rung.HOST:
            in_fp32_again = self._with_nodes_in_fp32(nodes, error)
            if in_fp32_again is not None:
                return in_fp32_again
            state = self._with_nodes_on_host(nodes, reason, error)
        earlier = tuple(move for move in self.moves if move.nodes != nodes)
        return replace(
            state,
            rungs={**self.rungs, **dict.fromkeys(nodes, rung)},
            moves=(*earlier, Move(nodes=nodes, rung=rung, reason=reason)),
            tried_in_fp32=self.tried_in_fp32 | nodes if self._may_try_fp32(nodes, rung) else self.tried_in_fp32,
        )

    def _may_try_fp32(self, nodes: frozenset[str], rung: Rung) -> bool:
        is_fp16 = self.imported.unconverted is not None
        return rung == Rung.HOST and is_fp16 and not nodes <= self.tried_in_fp32

    def _with_nodes_in_fp32(self, nodes: frozenset[str], error: Exception) -> Fallbacks | None:
        """Return the state with nodes of an fp16 model in fp32, on the first rung again.

        None if that was tried before or fails.
        """
        if self.imported.onnx_model is None:
            raise error  # gradients and single operators: no ONNX node does what their functions do
        if not self._may_try_fp32(nodes, Rung.HOST):
            return None
        try:
            with quiet_stderr():
                imported = in_fp32(self.imported, nodes)
        except errors.ModelError:
            return None
        rungs = {name: rung for name, rung in self.rungs.items() if name not in nodes}
        return replace(self, imported=imported, rungs=rungs, tried_in_fp32=self.tried_in_fp32 | nodes)

    def _with_nodes_on_host(self, nodes: frozenset[str], reason: str, error: Exception) -> Fallbacks:
        if self.is_strict:
            raise self._host_is_forbidden(self._names_of(nodes), reason) from error
        try:
            with quiet_stderr():
                return replace(self, imported=with_nodes_on_host(self.imported, nodes))
        except errors.ModelError as problem:
            raise error from problem

    def _host_is_forbidden(self, names: list[str], reason: str) -> errors.ModelError:
        why = f" ({reason})" if reason else ""
        text = f"no kernels for {', '.join(names)}{why}; strict=True lets nothing run on the host"
        return errors.ModelError(text, nodes=names)

    def _without_faults_of_ours(self, error: Exception) -> Fallbacks:
        """Log faults of Romou's code, and return the state. Raise `error` if faults must not be ignored.

        A programmer's mistake, such as a missing import in a pass, is raised as itself.
        """
        if variable("ROMOU_NO_FALLBACK") == "1":
            raise error
        causes = list(error.functions.values()) if isinstance(error, errors.BrokenFunctionsError) else [error]
        for cause in causes:
            if (slip := mistake(cause)) is not None:
                raise slip
        faults = {fault for cause in causes if (fault := own_fault(cause)) is not None}
        if faults and self.is_strict:
            raise error
        text = "a fault at %s, which is no limit of the model: %s; the nodes that it hits get other kernels."
        for fault in faults - self.reported_faults:
            logger.error(f"{text} Please report it; ROMOU_NO_FALLBACK=1 raises it", fault, _reason(error))
        return replace(self, reported_faults=self.reported_faults | faults)

    def _first_failing(self, error: Exception, builds: Callable[[Fallbacks], object]) -> frozenset[str]:
        """Return the first node that makes the whole model fail. Raises `error` if it is on the host already."""
        model, on_host = self.imported.folded, self.imported.on_host
        if self.imported.onnx_model is None:
            raise error
        values = Values(model)

        def fails(count: int) -> bool:
            try:
                parts = split(first_nodes(count, values), {index for index in on_host if index < count})
                builds(replace(self, imported=replace(self.imported, mod=to_relax(parts.model))))
            except FINAL_ERRORS:
                raise
            except Exception:  # by many types
                return True
            return False

        with quiet_stderr():
            index = first_failing(len(model.graph.node), fails)
        if index in on_host:
            raise error
        return frozenset({first_output(model.graph.node[index])})

    def _nodes_behind(self, error: errors.NumericError) -> frozenset[str]:
        """Return the imported nodes that compute the outputs of a node of the user's model, by their first outputs.

        If the imported model lacks these tensors, return the nodes of the next tensors behind them.
        """
        model = self.imported.onnx_model
        node_of = {name: first_output(node) for node in self.imported.folded.graph.node for name in node.output if name}
        user_nodes = model.graph.node if model is not None else ()
        wrong = [node for node in user_nodes if (node.name or ", ".join(node.output)) == error.node]
        names = {name for node in wrong for name in node.output}
        while names and not any(spelled in node_of for name in names for spelled in (name, f"{name}_fp16")):
            names = {name for node in user_nodes if names & set(node.input) for name in node.output} - names
        spellings = [spelled for name in names for spelled in (name, f"{name}_fp16")]
        return frozenset(node_of[spelled] for spelled in spellings if spelled in node_of)

    def _names_of(self, nodes: Collection[str]) -> list[str]:
        """Return names for messages, in the graph's order."""
        return [node_name(node) for node in self.imported.folded.graph.node if first_output(node) in nodes]


def _reason(error: Exception) -> str:
    """Return an error's message in one line, without its hint."""
    return " ".join((error.message if isinstance(error, errors.RomouError) else str(error)).split())[:_MOST_CHARACTERS]
