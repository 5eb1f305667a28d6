"""romou.compile: a model with default schedules, without a device."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.checked_options import takes_options
from romou.base.compat import check_versions
from romou.compiler.compilation import Compilation
from romou.driver.check.compiled import checked, without_check
from romou.driver.model import default_model
from romou.driver.options import CompileOptions
from romou.driver.site import TimingSite
from romou.driver.sizes.shapes import for_each_shape
from romou.driver.summary import warn_of_host
from romou.runtime.module import TunedModel

if TYPE_CHECKING:
    import onnx

    from romou.compiler.frontend.imported import ImportedModel


@takes_options(CompileOptions)
def compile(model: onnx.ModelProto | str | Path | ImportedModel, options: CompileOptions) -> TunedModel:
    """Compile a model with default schedules. Nothing is measured. Its outputs are checked against onnxruntime's.

    Several shapes or sizes of a dimension make a `MultiShapeModel`.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, "bundled:NAME" for a bundled network, or what `romou.training.gradients` and
        `romou.operators` make.

    Raises
    ------
    UsageError
        A wrong argument. For an unknown option, the message has the nearest name.
    ModelError
        The model is missing or broken, or takes more than `max_memory`. Or a node has no kernel, and onnxruntime cannot
        run it either or `strict` forbids that.
    NumericError
        The outputs are wrong. The message names the first ONNX operator with a wrong output.
    DeviceError
        The target names no device and none is attached, there is no device of that index, or the model does not run on
        it.
    CompatError
        The TVM packages are not the pair that this version was made for.
    """
    check_versions()
    return for_each_shape(model, options, compile_one)


def compile_one(import_now: Callable[[], ImportedModel], options: CompileOptions) -> TunedModel:
    """Compile a model for one shape."""
    started = time.monotonic()
    device, limited = options.device_index(), options.limited_target()
    site = TimingSite(named=options.parsed_target(), target=limited, index=device or 0)
    compilation = Compilation.of(import_now(), limited, is_strict=options.strict).with_default_kernels()
    compilation.check_variant()
    make = functools.partial(default_model, max_memory=options.max_memory, started=started)
    if options.verify:
        compiled = checked(compilation, site, device, make)
    else:
        compiled = without_check(make(compilation, site), "verify=False (--no-verify)")
    warn_of_host(compiled.summary())
    return compiled
