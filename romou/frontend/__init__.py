"""ONNX in, Relax out: checking, fixing shapes, folding, import, task extraction."""

from romou.frontend.onnx_import import ImportedModel, import_alone, import_onnx, with_more_on_host

__all__ = ["ImportedModel", "import_alone", "import_onnx", "with_more_on_host"]
