"""ONNX in, Relax out: checking, fixing shapes, folding, import, task extraction."""

from romou.frontend.onnx_import import ImportedModel, import_onnx

__all__ = ["ImportedModel", "import_onnx"]
