"""romou.tune: from an ONNX model to a tuned module, the stages in order. See ARCHITECTURE.md for each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.checked_options import takes_options
from romou.base.compat import check_versions
from romou.base.linking import check_linker
from romou.compiler.compilation import Compilation
from romou.compiler.frontend.imported import ImportedModel
from romou.driver.choice.finish import finish
from romou.driver.choice.kept import keep_choice, kept_choice
from romou.driver.options import TuneOptions
from romou.driver.search.ahead import DefaultKernels, DeferredThread, DeviceProbe
from romou.driver.search.busy import ProcessorUse, warn_if_busy
from romou.driver.search.course import Course
from romou.driver.search.model_search import ModelSearch
from romou.driver.site import TimingSite
from romou.driver.sizes.shapes import for_each_shape
from romou.driver.summary import warn_of_stand_in
from romou.runtime.module import TunedModel
from romou.runtime.workers import nursery

if TYPE_CHECKING:
    import onnx


@takes_options(TuneOptions)
def tune(model: onnx.ModelProto | str | Path | ImportedModel, options: TuneOptions) -> TunedModel:
    """Tune a model on the attached device, or on devices elsewhere.

    Several shapes or sizes of a dimension make a `MultiShapeModel`. `trials` and `seconds` are of each shape. Kernels
    that two shapes have in common are measured once.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, "bundled:NAME" for a bundled network, or what `romou.training.gradients` and
        `romou.operators` make.

    Raises
    ------
    UsageError
        A wrong argument. For an unknown option or field of `measure`, the message has the nearest name.
    ModelError
        The model is missing or broken, or takes more than `max_memory` in any way. Or a node has no kernel, and
        onnxruntime cannot run it either or `strict` forbids that.
    NumericError
        The outputs are wrong. The message names the first ONNX operator with a wrong output. Records are kept.
    DeviceError
        There is no device, or it does not compute a tiny kernel correctly, or no server or no worker of `builders` can
        be reached any more. Records are kept.
    RecordError
        The records in `work_dir` are unreadable.
    CompatError
        The TVM packages are not the pair that this version was made for, or a server or a worker of `builders` has
        other ones.
    """
    return tune_with(model, options)


def tune_with(model: onnx.ModelProto | str | Path | ImportedModel, options: TuneOptions) -> TunedModel:
    """Tune a model, as `tune` does."""
    check_versions()
    options.search_options(options.parsed_target())  # checked before the long part
    return for_each_shape(model, options, tune_one)


def tune_one(import_now: Callable[[], ImportedModel], options: TuneOptions) -> TunedModel:
    """Tune a model for one shape."""
    course = Course.of(options.progress)
    with searching(import_now, options, course) as (site, search, kernels):
        course = course.searching(options.seconds)
        searched = search.run(kernels, course)  # tasks -> pruned spaces -> measured candidates -> best config of each
    try:
        compilation, folder = searched.compilation, searched.records
        tuned = finish(
            searched,
            site,
            course,
            max_memory=options.max_memory,
            verify=options.verify,
            before=None if folder is None else kept_choice(folder, compilation, site),
        )
        if folder is not None and not tuned.summary().is_by_estimate:
            keep_choice(folder, compilation, site, tuned)
        return tuned
    finally:
        site.release()


@contextlib.contextmanager
def searching(
    import_now: Callable[[], ImportedModel], options: TuneOptions, course: Course
) -> Iterator[tuple[TimingSite, ModelSearch, DefaultKernels]]:
    """Yield the device, the search on it, and the imported model with default kernels to search on."""
    target, measure, address = options.parsed_target(), options.measure_options(), options.address()
    use = ProcessorUse.now()
    if options.trials:
        check_linker(None if address else target.host)  # a server's host is checked when it is known
        nursery.begin()
    device = DeviceProbe(target, address, options.device_index(options.rpc))  # looked for meanwhile
    with course.doing("importing the model"):
        imported = import_now()  # ONNX -> Relax
    with device.runner(measure, identify=options.trials > 0) as (site, runner), DeferredThread() as later:
        warn_of_stand_in(site)
        search = ModelSearch(site, runner, options, later)
        compilation = Compilation.of(imported, site.target, is_strict=options.strict or address is not None)
        # Relax -> fused functions and their tasks
        with course.doing("compiling the model with default kernels"):
            kernels = DefaultKernels(compilation, options.max_memory, later if search.compiles_ahead else None)
        device.wait_until_usable()
        if options.trials and site.times_on_host:
            warn_if_busy(use)
        yield site, search, kernels
