"""The ONNX nodes of a Relax variable: the names of their first outputs, as the source name of the variable's span.

TVM's graph passes keep the variables that they rewrite, with their spans. `romou.compiler.graph.relax_rewriter`
copies the origin to new bindings, `romou.compiler.graph.origins` to fused operators. So a kernel that cannot be built
is traced back to the nodes of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tvm import relax
from tvm.ir import SourceName, Span
from tvm_ffi.structural import structural_map

from romou.compiler.tir.traversal import with_fields

Origin = frozenset[str]
NOWHERE: Origin = frozenset()

# Separates names. No tensor name contains it, because ONNX's tools print names line by line.
_SEPARATOR = "\n"


def origin_of(var: relax.Var) -> Origin:
    """Return the nodes that a variable is computed from, empty if they are not known."""
    span = var.span
    if not isinstance(span, Span) or span.source_name is None or not span.source_name.name:
        return NOWHERE
    return frozenset(span.source_name.name.split(_SEPARATOR))


def span_of(origin: Iterable[str]) -> Span | None:
    """Return the span that names these nodes, None for no nodes."""
    names = sorted(set(origin))
    return Span(SourceName(_SEPARATOR.join(names)), 0, 0, 0, 0) if names else None


def with_origins(main: relax.Function, origins: Mapping[relax.Var, Origin]) -> relax.Function:
    """Return a function without inner functions, and with these origins of its variables."""
    changed = {
        var: type(var)(var.name, var.ty, span_of(origin))
        for var, origin in origins.items()
        if origin and origin != origin_of(var)
    }
    if not changed:
        return main
    body = structural_map(
        main.body,
        (relax.Var, lambda var: changed.get(var, var)),
        (relax.DataflowVar, lambda var: changed.get(var, var)),
    )
    return with_fields(main, body=body)


def bindings_of(function: relax.Function) -> list[relax.Binding]:
    """Return the bindings of a function without inner functions, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def origins_of(function: relax.Function) -> dict[relax.Var, Origin]:
    """Return the origin of each variable that a function binds.

    A variable without a span has the origins of its readers, or else of the variables that it reads.
    """
    bindings = bindings_of(function)
    origins = {binding.var: origin_of(binding.var) for binding in bindings}
    reads = {
        binding.var: [var for var in relax.analysis.free_vars(binding.value) if var in origins] for binding in bindings
    }
    for binding in reversed(bindings):
        for var in reads[binding.var]:
            if not origin_of(var):
                origins[var] |= origins[binding.var]
    for binding in bindings:
        if not origins[binding.var]:
            origins[binding.var] = NOWHERE.union(*(origins[var] for var in reads[binding.var]))
    return origins


def with_heirs(before: relax.Function, after: relax.Function) -> relax.Function:
    """Return `after`, rewritten from `before`, with the origins of inlined nodes added to the readers of their results.

    No variable names these nodes any more, because the readers' kernels compute them on the fly.
    """
    origins, left = origins_of(before), {binding.var: origin_of(binding.var) for binding in bindings_of(after)}
    present = NOWHERE.union(*left.values())
    if all(origin <= present for origin in origins.values()):
        return after
    heirs: dict[relax.Var, Origin] = {var: origin & present for var, origin in origins.items()}
    more: dict[str, Origin] = {}
    for binding in reversed(bindings_of(before)):
        for var in relax.analysis.free_vars(binding.value):
            if var in heirs and not origins[var] & present:
                heirs[var] |= heirs[binding.var]
        for name in heirs[binding.var]:
            more[name] = more.get(name, NOWHERE) | (origins[binding.var] - present)
    return with_origins(
        after, {var: origin.union(*(more.get(name, NOWHERE) for name in origin)) for var, origin in left.items()}
    )
