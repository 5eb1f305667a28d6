"""romou.compare: a model against an earlier bench of it, operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from romou.api.bench import bench_of
from romou.base.checked_options import takes_options
from romou.base.errors import DeviceError, UsageError
from romou.base.space import Config
from romou.devices.mobile_compilers import Compiler
from romou.devices.targets import Target, attached_index
from romou.driver.options import CompareOptions
from romou.driver.site import TimingSite, timing
from romou.runtime.module import TunedModel
from romou.tools.regression import (
    Bench,
    Comparison,
    compare_benches,
    compare_recorded,
    load_module,
    parse_threshold,
    time_in_turns,
    with_times,
)
from romou.tools.regression.comparison import (
    IN_TURNS,
    STAGES,
    check_compiler,
    common_operators,
    compiled_elsewhere,
    open_names,
    refusal_of_recorded,
    time_verdicts,
)

if TYPE_CHECKING:
    from typing import TypeGuard

    import onnx


@takes_options(CompareOptions)
def compare(
    baseline: Bench | str | Path,
    current: Bench | onnx.ModelProto | str | Path,
    options: CompareOptions,
) -> Comparison:
    """Compare a model with an earlier bench of it, operator by operator.

    If the compiled models of both are at hand, they are timed alternately, now, on the attached device, so drift
    cancels in the ratio. Otherwise the recorded times are compared, in units of the reference model's, if they are of
    one device. If they are not, `Comparison.reason` says so, and only measures are compared.

    Parameters
    ----------
    baseline
        A bench, or the file that `Bench.save` wrote.
    current
        Another bench or its file, or a model, which is compiled for the baseline's target, with the baseline's configs
        unless `work_dir` is given.

    Raises
    ------
    UsageError
        A file that is no bench, benches of two targets or of nothing in common, counts of two compilers, or nothing
        left to compare.
    DeviceError
        Times are wanted and there is no device, or it does not compute a tiny kernel correctly.
    BuildError
        The baseline has counts of a mobile compiler, which has not been set up.
    """
    fail_over = parse_threshold(options.fail_over)
    before = baseline if isinstance(baseline, Bench) else Bench.load(baseline)
    target = Target.from_json(before.target)
    index = attached_index(target, options.device)
    with timing(target, options.rpc, index) as find_site:
        after = _current_bench(current, before, target, options, find_site if options.times else None)
        common_operators(before, after)  # before the long part
        if not options.times:
            return compare_benches(before, after, fail_over=fail_over, reason="times were not asked for")
        if options.recorded:
            return _compare_recorded(before, after, fail_over, options, reason="that was asked for")
        models = (
            _compiled_model(before, baseline, find_site, options.rpc),
            _compiled_model(after, current, find_site, options.rpc),
        )
        if models[0] is None or models[1] is None:
            missing = "baseline's" if models[0] is None else "current"
            reason = f"the {missing} compiled model is not at hand"
            return _compare_recorded(before, after, fail_over, options, reason=reason)
        return _compare_now((before, after), (models[0], models[1]), find_site(), fail_over, options)


def _current_bench(
    current: Bench | onnx.ModelProto | str | Path,
    before: Bench,
    target: Target,
    options: CompareOptions,
    find_site: Callable[[], TimingSite] | None,
) -> Bench:
    """Return the bench to compare with `before`. A model's bench is not timed yet."""
    compiler = before.compiler if options.measures else None
    if isinstance(current, Bench) or _is_bench_file(current):
        after = current if isinstance(current, Bench) else Bench.load(current)
        if compiler is not None:
            check_compiler(compiler, after.compiler)
        return after
    if compiler is not None:
        check_compiler(compiler, Compiler.installed(compiler.gpu))
    of_baseline = {o.key: Config(o.config) for o in before.operators if o.config}
    return bench_of(
        current, target, options, find_site, None if options.work_dir is not None else of_baseline, compiler
    )


def _compare_now(
    benches: tuple[Bench, Bench],
    models: tuple[TunedModel, TunedModel],
    site: TimingSite,
    fail_over: float,
    options: CompareOptions,
) -> Comparison:
    """Time both compiled models alternately on one device, and compare."""
    assert site.device is not None
    before, after = benches
    sides = (models[0].moved(site.index, site.remote), models[1].moved(site.index, site.remote))
    is_open = lambda pairs: open_names(pairs, fail_over)
    try:
        pairs = time_in_turns(before, after, sides, options.repeats, stages=STAGES, is_open=is_open, seed=options.seed)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        hint = "Compare the recorded times (recorded=True, --recorded), or save the baseline anew on this device."
        raise DeviceError(f"a compiled model does not run on {site.name}: {reason}", hint=hint) from error
    return compare_benches(
        before,
        after,
        fail_over=fail_over,
        times=time_verdicts(pairs, fail_over),
        timing=IN_TURNS,
        reason=compiled_elsewhere(before, site.device.to_dict()),
        device=site.name,
        has_measures=options.measures,
    )


def _compare_recorded(
    before: Bench, after: Bench, fail_over: float, options: CompareOptions, *, reason: str
) -> Comparison:
    """Compare recorded times if they are of one device, else only measures. reason: why nothing is timed now."""
    refusal = refusal_of_recorded(before, after)
    if refusal is not None:
        if not options.measures:
            raise UsageError(
                f"times cannot be compared: {refusal}",
                hint="Keep the baseline's .romou folder beside its file: both are timed here then.",
            )
        return compare_benches(before, after, fail_over=fail_over, reason=refusal)
    if after.compiled is not None and not after.model_times_ms:
        after = with_times(after, after.compiled, options.repeats, seed=options.seed)
    return compare_recorded(before, after, fail_over=fail_over, reason=reason, has_measures=options.measures)


def _is_bench_file(source: object) -> TypeGuard[str | Path]:
    return isinstance(source, str | Path) and str(source).endswith(".json")


def _compiled_model(
    bench: Bench, source: object, find_site: Callable[[], TimingSite], rpc: str | None
) -> TunedModel | None:
    """Return the compiled model of a bench, loaded from beside the bench's file if it is there."""
    if bench.compiled is not None or not isinstance(source, str | Path):
        return bench.compiled
    return load_module(bench, source, device=lambda: find_site().index, rpc=rpc)
