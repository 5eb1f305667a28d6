"""Read and check an ONNX model."""

from __future__ import annotations

from pathlib import Path

import onnx

from romou import models
from romou.base.errors import ModelError, UsageError
from romou.compiler.frontend.damage import check_weights
from romou.compiler.frontend.microsoft import with_microsoft_domain
from romou.compiler.frontend.onnx_graph import check


def load_onnx(model: onnx.ModelProto | str | Path) -> onnx.ModelProto:
    """Read and check a model. Raise ModelError if it is not valid."""
    if not isinstance(model, onnx.ModelProto | str | Path):
        raise UsageError(f"a model is the path of an ONNX file, or an onnx.ModelProto; got {type(model).__name__}")
    where = "the model" if isinstance(model, onnx.ModelProto) else str(model)
    model = models.bundled(model) or model
    if not isinstance(model, onnx.ModelProto):
        path = Path(model)
        if not path.is_file():
            raise ModelError(f"{path}: no such file; give the path of an ONNX model", hint=models.hint(str(path)))
        try:
            model = onnx.load(path)
        except Exception as error:  # protobuf and missing external data raise many types
            raise ModelError(
                f"{path}: not a readable ONNX file ({type(error).__name__}: {error}); export the model again"
            ) from error
    try:
        model = with_microsoft_domain(model)
        check(model)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"{where}: not a valid ONNX model: {str(error).strip()}") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{where}: a name in the model is not UTF-8 ({error}); export the model again") from error
    graph = model.graph
    names = [v.name for v in (*graph.input, *graph.output, *graph.initializer)] + [
        n for node in graph.node for n in (*node.input, *node.output)
    ]
    # protobuf returns text that is not UTF-8 as bytes.
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"{where}: the name {name!r} in the model is not UTF-8; export the model again")
    check_weights(model, where)
    if not model.graph.node:
        raise ModelError(f"{where}: the graph has no nodes; nothing to compile")
    return model


def graph_inputs(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    weights = {t.name for t in proto.graph.initializer}
    return [i for i in proto.graph.input if i.name not in weights]
