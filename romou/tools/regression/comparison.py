"""Compare two benches of a model: operators that became slower, and kernels with worse measures."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from romou.base.errors import UsageError
from romou.base.headline import Headline
from romou.devices.mobile_compilers import Compiler
from romou.tools.regression.bench_data import Bench, OperatorBench, Rounds, round_median
from romou.tools.regression.operators import JUDGED, OF_ANY_CONFIG
from romou.tools.regression.statistics import Shift, holm, paired_shift, unpaired_shift
from romou.tools.regression.timing import MODEL
from romou.tuner.records.record import Origin

# Probability that a comparison of equal benches reports any operator as slower.
ALPHA = 0.01
# Alternating measurements: undecided operators are measured with twice the pairs, and twice again.
STAGES = 3
# Largest ratio of slow to fast rounds (`_spread`). Above it, times depend more on other processes than on the kernel.
_QUIET = 1.25

IN_TURNS, RECORDED, NOT_TIMED = "in turns", "recorded", "not compared"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimeVerdict:
    """The verdict on the times of one operator.

    verdict: "slower" and "faster" are significant shifts beyond the limit. "same" is significantly within the limit, or
        not shifted. "undecided" may be slower than the limit, because the times are too noisy for the number of pairs.
    p: `Shift.p_slower`, or `p_faster` if faster, adjusted for the number of operators and stages.
    """

    verdict: str
    before_ms: float
    after_ms: float
    shift: Shift
    p: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rise:
    """A measure that rose beyond the limit. Values are divided by the second measure, if `JUDGED` names one."""

    measure: str
    before: float
    after: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """The comparison of one operator, or of the whole model.

    times: None if they were not compared.
    rises: measures that became worse.
    notes: changes without a failure.
    nodes: names of the ONNX nodes, empty for the whole model.
    """

    name: str
    calls: int
    times: TimeVerdict | None = None
    rises: tuple[Rise, ...] = ()
    notes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def is_regression(self) -> bool:
        """Return whether the operator is significantly slower, or worse in a measure."""
        return bool(self.rises) or (self.times is not None and self.times.verdict == "slower")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Headline):
    """The comparison of two benches of a model.

    model       the model's name
    target      `Target.to_json()` of the second bench
    fail_over   largest rise of a time or a measure that does not fail, as a share
    timing      "in turns", "recorded" or "not compared"
    reason      why the times were not compared in a better way. For times in turns, a remark on them. Or None
    machine     slowdown of the machine in the second bench, by the reference model. None unless times are recorded
    device      name of the device of the times. None if they were not compared
    compiler    mobile compiler whose counts were compared, or None
    rows        the whole model first, if it was timed. Then the operators of the second bench, then
                the removed operators
    """

    model: str
    target: str
    fail_over: float
    timing: str
    reason: str | None
    machine: float | None
    device: str | None
    compiler: str | None
    rows: tuple[Row, ...]

    @property
    def headline(self) -> str:
        """The model, and the numbers of compared, worse and undecided rows."""
        counts = f"{len(self.rows)} compared, {len(self.regressions)} worse, {len(self.undecided)} undecided"
        return f"{self.model}; {counts}; times: {self.timing}"

    @property
    def regressions(self) -> list[Row]:
        """Rows that became slower or worse in a measure."""
        return [row for row in self.rows if row.is_regression]

    @property
    def undecided(self) -> list[Row]:
        """Rows whose times leave open whether they became slower."""
        return [row for row in self.rows if row.times is not None and row.times.verdict == "undecided"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        rows = [{**dataclasses.asdict(row), "is_regression": row.is_regression} for row in self.rows]
        return {**dataclasses.asdict(self), "rows": rows, "is_regression": bool(self.regressions)}


def parse_threshold(text: str | float) -> float:
    """Return a threshold, "5%", 0.05 or "0.05", as a share. Raise UsageError for others: 5 may mean five times."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", str(text))
    value = float(match[1]) / (100 if match[2] else 1) if match else math.nan
    if not value <= (10 if match and match[2] else 1):
        raise UsageError(
            f"threshold {text!r} cannot be read", hint="Write a share: 5% or 0.05, at most 1000%.", value=str(text)
        )
    return value


def time_verdicts(
    pairs: Mapping[str, tuple[Rounds, Rounds]], fail_over: float, *, machine: tuple[Rounds, Rounds] | None = None
) -> dict[str, TimeVerdict]:
    """Judge the times of many subjects at once.

    pairs: name -> rounds before and after. In turns: the i-th rounds of both are adjacent in time.
    machine: the reference model's rounds in both sessions, for times of two sessions. The drift between them widens
        the limit. One model cannot show every difference between two sessions, so a subject can only be called slower
        or faster if it was quiet in both and the ranges of its rounds do not overlap. Other subjects are undecided or
        the same.
    """
    shifts = {}
    apart = dict.fromkeys(pairs, True)
    for name, (before, after) in pairs.items():
        x, y = shortest(before), shortest(after)
        shifts[name] = paired_shift(x, y) if machine is None else unpaired_shift(x, y)
        if machine is not None:
            apart[name] = max(_spread(x), _spread(y)) < _QUIET and (min(y) > max(x) or max(y) < min(x))
    limit = (1 + fail_over) * (math.exp(abs(math.log(drift(machine)))) if machine is not None else 1)
    stages = STAGES if machine is None else 1
    slower = dict(zip(shifts, holm([s.p_slower for s in shifts.values()], stages=stages), strict=True))
    faster = dict(zip(shifts, holm([s.p_faster for s in shifts.values()], stages=stages), strict=True))
    verdicts = {}
    for name, shift in shifts.items():
        if slower[name] < ALPHA and shift.ratio > limit and apart[name]:
            verdict, p = "slower", slower[name]
        elif faster[name] < ALPHA and shift.ratio < 1 / limit and apart[name]:
            verdict, p = "faster", faster[name]
        else:
            verdict, p = "undecided" if shift.high > limit else "same", slower[name]
        before_ms, after_ms = map(round_median, pairs[name])
        assert before_ms is not None
        assert after_ms is not None
        verdicts[name] = TimeVerdict(verdict=verdict, before_ms=before_ms, after_ms=after_ms, shift=shift, p=p)
    return verdicts


def drift(machine: tuple[Rounds, Rounds]) -> float:
    """Return the slowdown of the machine in the second session, as a factor."""
    return unpaired_shift(*map(shortest, machine)).ratio


def shortest(rounds: Rounds) -> list[float]:
    """Return the shortest repeat of each round: other processes on the machine only add time."""
    return [min(times) for times in rounds]


def _spread(times: Sequence[float]) -> float:
    """Return the ratio of slow to fast rounds, without a tenth of the rounds at either end."""
    fast, slow = np.quantile(times, (0.1, 0.9))
    return float(slow / fast)


def open_names(pairs: Mapping[str, tuple[Rounds, Rounds]], fail_over: float) -> list[str]:
    """Return the subjects of alternating measurements that more pairs may still decide."""
    return [name for name, times in time_verdicts(pairs, fail_over).items() if times.verdict == "undecided"]


def common_operators(before: Bench, after: Bench) -> list[tuple[OperatorBench, OperatorBench]]:
    """Return the operators of both benches, matched by name.

    UsageError if there are none, or the targets differ.
    """
    if before.target != after.target:
        raise UsageError(
            f"the benches are of two targets, {before.target} and {after.target}",
            hint="Compare what was compiled for one target.",
        )
    earlier = {o.name: o for o in before.operators}
    pairs = [(earlier[o.name], o) for o in after.operators if o.name in earlier]
    if not pairs:
        raise UsageError(
            f"the benches of {before.model!r} and {after.model!r} have no operator in common",
            hint="Are they of one model?",
        )
    return pairs


def check_compiler(theirs: Compiler, ours: Compiler | None) -> None:
    """Raise UsageError unless the compilers of the current counts, `ours`, are or hold those of the baseline's."""
    if ours is None or ours.among(theirs) != theirs:
        raise UsageError(
            f"counts of two compilers are not compared: the baseline's are by {theirs}, the current ones by"
            f" {ours or 'none'}",
            hint="Write both with one compiler, by `romou bench --gpu`, or compare times alone (--only times).",
        )


def refusal_of_recorded(before: Bench, after: Bench) -> str | None:
    """Return the reason why the recorded times of two benches cannot be compared. None if they can."""
    if before.device is None or not before.model_times_ms:
        return "the baseline has no times"
    if after.device is None:
        return "the current bench has no times"
    # The versions of Romou may differ: comparing them is the purpose.
    theirs, ours = (Origin(device=dict(device), romou="", tvm="") for device in (before.device, after.device))
    refusal = ours.refusal(theirs)
    return f"the baseline was {refusal}, and its compiled model is not at hand to be timed here" if refusal else None


def compiled_elsewhere(before: Bench, device: Mapping[str, Any]) -> str | None:
    """Return a remark if the baseline's kernels were chosen for a device other than `device`, or None."""
    if before.device is None or (before.device.get("kind"), before.device.get("name")) == (
        device.get("kind"),
        device.get("name"),
    ):
        return None
    return f"the baseline was compiled within the limits of {before.device.get('name')!r}"


def compare_recorded(
    before: Bench, after: Bench, *, fail_over: float, reason: str, has_measures: bool = True
) -> Comparison:
    """Compare the recorded times of both benches.

    reason: why they were not timed in turns
    """
    if not before.model_times_ms or not after.model_times_ms:
        raise UsageError("a bench holds no times")
    machine = (before.reference_times_ms, after.reference_times_ms)
    pairs = {
        MODEL: (before.model_times_ms, after.model_times_ms),
        **{b.name: (b.times_ms, a.times_ms) for b, a in common_operators(before, after)},
    }
    return compare_benches(
        before,
        after,
        fail_over=fail_over,
        times=time_verdicts(pairs, fail_over, machine=machine),
        timing=RECORDED,
        reason=reason,
        machine=drift(machine),
        device=str((after.device or {}).get("name")),
        has_measures=has_measures,
    )


def compare_benches(
    before: Bench,
    after: Bench,
    *,
    fail_over: float,
    times: Mapping[str, TimeVerdict] | None = None,
    timing: str = NOT_TIMED,
    reason: str | None = None,
    machine: float | None = None,
    device: str | None = None,
    has_measures: bool = True,
) -> Comparison:
    """Return the verdicts on times and measures, side by side.

    times: `time_verdicts` of the operators of both benches, by name, and of the whole model.
    """
    common = {b.name: (b, a) for b, a in common_operators(before, after)}
    times = times or {}
    rows = [Row(name=MODEL, calls=1, times=times[MODEL])] if MODEL in times else []
    for operator in after.operators:
        if operator.name not in common:
            rows.append(Row(name=operator.name, calls=operator.calls, notes=("new",), nodes=operator.nodes))
            continue
        old, _ = common[operator.name]
        rises, notes = _judge_measures(old, operator, fail_over) if has_measures else ((), ())
        rows.append(
            Row(
                name=operator.name,
                calls=operator.calls,
                times=times.get(operator.name),
                rises=rises,
                notes=notes,
                nodes=operator.nodes,
            )
        )
    rows += [
        Row(name=o.name, calls=o.calls, notes=("gone",), nodes=o.nodes)
        for o in before.operators
        if o.name not in common
    ]
    return Comparison(
        model=after.model,
        target=after.target,
        fail_over=fail_over,
        timing=timing,
        reason=reason,
        machine=machine,
        device=device,
        compiler=str(before.compiler) if before.compiler is not None and has_measures else None,
        rows=tuple(rows),
    )


def _judge_measures(
    before: OperatorBench, after: OperatorBench, fail_over: float
) -> tuple[tuple[Rise, ...], tuple[str, ...]]:
    notes, judged = [], tuple(JUDGED)
    if before.calls != after.calls:
        notes.append(f"called {after.calls} times, was {before.calls}")
    if before.key not in (after.key, after.structure):
        notes.append("another epilogue or definition")
    if before.config != after.config:
        # Another schedule trades one measure for another, so only times can be compared.
        changed = sorted(k for k in {*before.config, *after.config} if before.config.get(k) != after.config.get(k))
        judged = tuple(measure for measure in OF_ANY_CONFIG if measure in before.measures)
        compared = f"only {', '.join(judged)}" if judged else "measures not"
        notes.append(f"another config ({', '.join(changed)}): {compared} compared")
    elif before.source_sha256 != after.source_sha256:
        notes.append("another text")
    rises = []
    for measure in judged:
        if measure not in after.measures:
            if measure in before.measures:
                notes.append(f"{measure}: not compared, the current kernels have none")
            continue
        if measure not in before.measures:
            notes.append(f"{measure}: not compared, the baseline lacks it or was counted otherwise")
            continue
        _, per = JUDGED[measure]
        old, new = (_per(o.measures, measure, per) for o in (before, after))
        if new > old * (1 + fail_over) + 1e-9:
            rises.append(Rise(measure=measure, before=old, after=new))
        elif new < old:
            notes.append(f"{measure} {old:g} -> {new:g}")
    return tuple(rises), tuple(notes)


def _per(measures: Mapping[str, int | float], measure: str, per: str | None) -> float:
    return measures[measure] / (measures.get(per, 0) or 1) if per else measures[measure]
