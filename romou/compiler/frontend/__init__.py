"""Import of ONNX models into Relax: check a model, fix its shapes, fold constants, choose precisions, and import it."""

from romou.compiler.frontend.constants_given import with_constants
from romou.compiler.frontend.imported import ImportedModel
from romou.compiler.frontend.input_uses import draws_of
from romou.compiler.frontend.onnx_import import load_onnx
from romou.compiler.frontend.precision import Precision
from romou.compiler.frontend.shape_sets import Shapes, listed_sizes, shape_sets

__all__ = [
    "ImportedModel",
    "Precision",
    "Shapes",
    "draws_of",
    "listed_sizes",
    "load_onnx",
    "shape_sets",
    "with_constants",
]
