"""romou.bench: times and measures of a model by operator, kept as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import tvm

from romou.base.checked_options import takes_options
from romou.base.clock import timestamp
from romou.base.compat import check_versions
from romou.base.space import Config
from romou.base.version import __version__
from romou.compiler.compilation import Compilation
from romou.compiler.frontend.imported import ImportedModel
from romou.compiler.graph.extract import count_calls
from romou.compiler.task import under_keys
from romou.devices.mobile_compilers import Compiler
from romou.devices.targets import Target, gpu_for
from romou.driver.model import tuned_model
from romou.driver.options import BenchOptions, CompareOptions
from romou.driver.search.records import recorded_configs, valid_configs
from romou.driver.site import TimingSite, timing
from romou.driver.summary import nodes_of_functions
from romou.tools.regression import Bench, operators_of, with_times

if TYPE_CHECKING:
    import onnx


@takes_options(BenchOptions)
def bench(model: onnx.ModelProto | str | Path, options: BenchOptions) -> Bench:
    """Compile a model and take the times and the measures that `compare` needs, by operator. Times are in milliseconds.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or "bundled:NAME" for a bundled network.

    Raises
    ------
    UsageError
        A wrong argument.
    ModelError
        The model is missing, broken, or holds an operator that TVM's importer lacks.
    DeviceError
        Times are wanted and there is no device, or it does not compute a tiny kernel correctly.
    CompatError
        The TVM packages are not the pair that this version was made for.
    RecordError
        The records in `work_dir` are unreadable.
    BuildError
        Mesa's compiler for `gpu` has not been set up.
    """
    target = options.parsed_target()
    with timing(target, options.rpc, options.device_index(options.rpc)) as find_site:
        compiler = None if options.gpu is None else Compiler.installed(gpu_for(options.gpu, target))
        untimed = bench_of(model, target, options, find_site if options.times else None, compiler=compiler)
        return (
            with_times(untimed, untimed.compiled, options.repeats, seed=options.seed) if untimed.compiled else untimed
        )


def bench_of(
    model: onnx.ModelProto | str | Path,
    target: Target,
    options: BenchOptions | CompareOptions,
    find_site: Callable[[], TimingSite] | None,
    configs: Mapping[str, Config] | None = None,
    compiler: Compiler | None = None,
) -> Bench:
    """Return the bench of a model before it is timed.

    find_site: see `timing`. None: the kernels are only read, not timed.
    configs: task key -> config, instead of the records in `work_dir`. The default replaces a config that its task's
    space does not have.
    compiler: mobile compilers that count. None: without counts.
    """
    check_versions()
    imported = options.imported(model)
    site = TimingSite(named=target, target=target) if find_site is None else find_site()
    compilation = Compilation.of(imported, site.target).with_default_kernels()
    if configs is None:
        seconds, chosen = recorded_configs(options.work_dir, compilation, site.target, site.device)
        compilation = compilation.joined_where_faster(seconds)
    else:
        configs = under_keys(configs, compilation.candidates)
        compilation = compilation.joined_where(configs.__contains__)
        chosen = valid_configs(compilation.tasks, configs, site.target)
    compilation = compilation.with_configs(chosen)
    untimed = Bench(
        model=options.label or _label_of(model, imported),
        target=target.to_json(),
        device=site.device.to_dict() if site.device is not None else None,
        romou=__version__,
        tvm=tvm.__version__,
        time=timestamp(),
        operators=operators_of(
            compilation.scheduled_functions(),
            count_calls(compilation.functions.fused),
            site.target,
            nodes_of_functions(compilation),
            compiler,
        ),
        compiler=compiler,
    )
    if find_site is None:
        return untimed
    return replace(untimed, compiled=tuned_model(compilation, site))


def _label_of(model: object, imported: ImportedModel) -> str:
    if isinstance(model, str | Path):
        return str(model)
    return imported.onnx_model.graph.name if imported.onnx_model else "imported"
