"""romou.compare: a model against an earlier bench of it, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from romou.api.bench import bench_of, check_rounds
from romou.base.errors import DeviceError, UsageError
from romou.base.space import Config
from romou.compiler.frontend import Precision
from romou.devices.targets import Target
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
    common_operators,
    compiled_elsewhere,
    open_names,
    refusal_of_recorded,
    time_verdicts,
)

if TYPE_CHECKING:
    from typing import TypeGuard

    import numpy as np
    import onnx


def compare(
    baseline: Bench | str | Path,
    current: Bench | onnx.ModelProto | str | Path,
    *,
    fail_over: float | str = 0.05,
    work_dir: str | Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, object] | None = None,
    precision: str = "float32",
    io_precision: str | None = None,
    calibration: Sequence[Mapping[str, np.ndarray]] | None = None,
    repeats: int = 16,
    seed: int = 0,
    times: bool = True,
    measures: bool = True,
    recorded: bool = False,
    label: str | None = None,
    rpc: str | None = None,
) -> Comparison:
    """Compare a model with an earlier bench of it, operator by operator.

    Where the compiled models of both are at hand, they are timed alternately, now, on the attached device, so drift
    cancels in the ratio. Otherwise the recorded times are compared, in units of the reference model's, if they are of
    one device. If they are not, `Comparison.reason` says so, and only measures are compared.

    Parameters
    ----------
    baseline
        A bench, or the file that `Bench.save` wrote.
    current
        Another bench or its file, or a model, which is compiled for the baseline's target, with the baseline's configs
        unless `work_dir` is given.
    fail_over
        Share by which a time or a measure may rise: 0.05 or "5%".
    work_dir
        Folder of the records of `tune`, to take configs from. None: the baseline's configs.
    shapes
        Shape by name, for inputs whose shape the model leaves open.
    constants
        Value by name, for inputs that become constants of the model, as in `tune`.
    precision, io_precision, calibration
        What the model computes with, as in `tune`.
    repeats
        Pairs that are timed at first, at least 8; what stays open is measured with up to four times as many.
    seed
        Seed of the inputs and of the order of the measurements.
    times, measures
        False: leave times, or measures, out.
    recorded
        Compare recorded times, even where both could be timed now.
    label
        How the current model is named; by default its path, or the graph's name.
    rpc
        Where the device is, as in `tune`: "host:port/key" or "tracker://host:port/key". None: the attached one. Both
        sides share one session.

    Raises
    ------
    UsageError
        A file that is no bench, benches of two targets or of nothing in common, or nothing left to compare.
    DeviceError
        Times are wanted and there is no device, or it does not compute a tiny kernel correctly.
    """
    share = parse_threshold(fail_over)
    check_rounds(repeats)
    asked = Precision.checked(precision, io_precision, calibration)
    if not times and not measures:
        raise UsageError("neither times nor measures are left to compare")
    before = baseline if isinstance(baseline, Bench) else Bench.load(baseline)
    after = Bench.load(current) if _is_bench_file(current) else current
    target = Target.from_json(before.target)
    with timing(target, rpc) as place:
        if not isinstance(after, Bench):
            configs = None if work_dir is not None else {o.key: Config(o.config) for o in before.operators if o.config}
            # Timed below, when it is known against what.
            how: dict[str, Any] = {"shapes": shapes, "constants": constants, "precision": asked, "repeats": 0}
            how |= {"seed": seed, "label": label, "find_site": place if times else None}
            after = bench_of(after, target, work_dir=work_dir, configs=configs, **how)
        common_operators(before, after)  # before the long part
        if not times:
            return compare_benches(before, after, fail_over=share, reason="times were not asked for")
        modules = (
            (None, None)
            if recorded
            else (_module_of(before, baseline, place, rpc), _module_of(after, current, place, rpc))
        )
        if modules[0] is not None and modules[1] is not None:
            here = place().device
            assert here is not None
            sides = (modules[0].moved(place().index, place().remote), modules[1].moved(place().index, place().remote))
            try:
                pairs = time_in_turns(
                    before,
                    after,
                    sides,
                    repeats,
                    stages=STAGES,
                    is_open=lambda found: open_names(found, share),
                    seed=seed,
                )
            except RuntimeError as error:
                hint = (
                    "Compare the recorded times (recorded=True, --recorded), or save the baseline anew on this device."
                )
                raise DeviceError(
                    f"a compiled model does not run on {here.name}: {str(error).strip().splitlines()[-1]}", hint=hint
                ) from error
            return compare_benches(
                before,
                after,
                fail_over=share,
                times=time_verdicts(pairs, share),
                timing=IN_TURNS,
                reason=compiled_elsewhere(before, here.to_dict()),
                device=here.name,
                has_measures=measures,
            )
        missing = "baseline's" if modules[0] is None else "current"
        reason = "that was asked for" if recorded else f"the {missing} compiled model is not at hand"
        refusal = refusal_of_recorded(before, after)
        if refusal is not None:
            if not measures:
                raise UsageError(
                    f"times cannot be compared: {refusal}",
                    hint="Keep the baseline's .romou folder beside its file: both are timed here then.",
                )
            return compare_benches(before, after, fail_over=share, reason=refusal)
        if after.compiled is not None and not after.model_times_ms:
            after = with_times(after, after.compiled, repeats, seed=seed)
        return compare_recorded(before, after, fail_over=share, reason=reason, has_measures=measures)


def _is_bench_file(given: object) -> TypeGuard[str | Path]:
    return isinstance(given, str | Path) and str(given).endswith(".json")


def _module_of(made: Bench, given: object, place: Callable[[], TimingSite], rpc: str | None) -> TunedModel | None:
    if made.compiled is not None or not isinstance(given, str | Path):
        return made.compiled
    return load_module(made, given, device=lambda: place().index, rpc=rpc)
