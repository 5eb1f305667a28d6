"""Move nodes of a model to the host, or to fp32, because they cannot be imported or a later step fails at them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Set
from dataclasses import replace

import onnx

from romou.base.errors import ModelError
from romou.compiler.frontend.fp16 import Fp16Plan, to_fp16
from romou.compiler.frontend.host_groups import Values, alone, split
from romou.compiler.frontend.host_table import unserved
from romou.compiler.frontend.imported import ImportedModel, imported_with
from romou.compiler.frontend.onnx_graph import first_output
from romou.compiler.frontend.prefix import first_failing, first_nodes
from romou.compiler.frontend.to_relax import to_relax

# Number of nodes searched for one by one, if each can be imported separately but not all of them together.
_MOST_SEARCHES = 8


def with_more_on_host(imported: ImportedModel, error: ModelError) -> ImportedModel:
    """Return a model that cannot be imported unchanged, with a minimal set of its nodes on the host.

    The candidates are nodes that cannot be imported separately, then nodes of unknown shapes, then, one by one, the
    first node whose import fails. Before all of them, nodes that fail in fp16 are tried in fp32.

    error: of the import. It is raised again, with the reason of the first candidates, if onnxruntime rejects all.
    """
    rejected: list[ModelError] = []

    def attempt(on_host: Set[int]) -> ImportedModel | None:
        try:
            return imported_with(imported, frozenset(on_host))
        except ModelError as problem:
            rejected.append(problem)
            return None

    nodes, values = imported.folded.graph.node, Values(imported.folded)
    failing, unknown = set(imported.on_host), set[int]()
    importable: dict[bytes, bool] = {}
    for i, node in enumerate(nodes):
        if not values.is_static(node):
            unknown.add(i)
        elif i not in failing:
            key = values.kind_of(node)
            if key not in importable:
                importable[key] = _can_import(alone(node, values))
            failing |= set() if importable[key] else {i}
    if imported.unconverted is not None and failing != imported.on_host:
        with contextlib.suppress(ModelError):
            return in_fp32(imported, {first_output(nodes[i]) for i in failing})
    for chosen in (failing, failing | unknown):
        if (found := attempt(chosen)) is not None:
            return found
    for _ in range(_MOST_SEARCHES):
        at = first_failing(len(nodes), lambda count: not _can_split(count, values, failing))
        if at in failing:
            break
        failing.add(at)
        if (found := attempt(failing)) is not None:
            return found
    if (found := attempt({*range(len(nodes))})) is not None:
        return found
    reason = next((f"; on the host: {each.message}" for each in rejected if each.message != error.message), "")
    raise ModelError(f"{error.message}{reason}", hint=error.hint, **error.fields) from error


def with_nodes_on_host(imported: ImportedModel, names: Collection[str]) -> ImportedModel:
    """Return the model with the nodes of the first outputs `names` on the host as well.

    Raise ModelError if onnxruntime rejects them, or if their tensors cannot be copied.
    """
    chosen = {i for i, node in enumerate(imported.folded.graph.node) if first_output(node) in names}
    return imported_with(imported, imported.on_host | chosen)


def in_fp32(imported: ImportedModel, names: Collection[str]) -> ImportedModel:
    """Return an fp16 model with the nodes of the first outputs `names` in fp32, or raise ModelError.

    Nodes on the host are looked up again.
    """
    assert imported.unconverted is not None, "a model that was not converted is fp32 already"
    kept = imported.precision.kept | set(names) | {name.removesuffix("_fp16") for name in names}
    converted = to_fp16(Fp16Plan(imported.unconverted, kept))
    precision = replace(imported.precision, kept=kept)
    return imported_with(replace(imported, folded=converted, precision=precision), frozenset(unserved(converted)))


def _can_split(count: int, values: Values, on_host: Set[int]) -> bool:
    """Return whether the first nodes can be imported with some of them on the host."""
    try:
        parts = split(first_nodes(count, values), {i for i in on_host if i < count})
    except ModelError:
        return False
    return _can_import(parts.model)


def _can_import(model: onnx.ModelProto) -> bool:
    try:
        to_relax(model)
    except Exception:  # the importer and the passes raise many types
        return False
    return True
