"""A model lowered with default kernels, for what runs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.compat import check_versions
from romou.compiler.compilation import Compilation

if TYPE_CHECKING:
    import onnx

    from romou.driver.options import ModelOptions


def lowered_model(model: onnx.ModelProto | str | Path, options: ModelOptions) -> Compilation:
    """Return the model with default kernels for the target of the options.

    Raises
    ------
    CompatError
        The TVM packages are not the pair that this version was made for.
    ModelError
        The model is invalid or has unsupported operators.
    UsageError
        No operator has the target's variant.
    """
    check_versions()
    imported = options.imported(model)
    compilation = Compilation.of(imported, options.limited_target()).with_default_kernels()
    compilation.check_variant()
    return compilation
