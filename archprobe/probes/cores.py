"""The number of cores: the time of heavy work-groups steps up with the first group that finds all cores busy."""

from __future__ import annotations

from archprobe.analysis.period import find_period
from archprobe.curve import Findings
from archprobe.meter import Meter, Run
from archprobe.probes.arithmetic import multiply_add
from archprobe.probes.probe import probe

_MOST = 4096


@probe(
    "Cores", "Number of cores", "time over the count of heavy work-groups climbs in stairs as long as there are cores"
)
def cores(meter: Meter) -> Findings:
    facts = meter.device.facts
    # The largest group saturates a core's arithmetic: a second one on the same core doubles the time.
    size = 64 if facts.is_cpu else facts.max_work_group_size

    def make(groups: int) -> Run:
        return multiply_add(meter, groups=groups, group_size=size)[0]

    def time_of(groups: int) -> float:
        return min(make(groups)(iterations) for _ in range(3))

    iterations = meter.calibrate(make(1))
    alone, upper = time_of(1), 2
    while upper < _MOST and time_of(upper) < 1.6 * alone:
        upper *= 2
    lower = upper // 2
    while upper - lower > 1:
        middle = (lower + upper) // 2
        lower, upper = (middle, upper) if time_of(middle) < 1.6 * alone else (lower, middle)
    curve = meter.part(0.1, 1.0).sweep("cores", positions(lower), make, x_label="work-groups")
    answer = find_period(curve.xs, curve.ys, unit="count", candidates=range(2, 2 * lower + 3))
    if not answer.is_declined and facts.compute_units not in (0, answer.value):
        answer = answer.with_notes(f"the driver speaks of {facts.compute_units} compute units")
    answers = {"CoreCount": answer}
    return Findings(answers=answers, curves=(curve.marked(answers),))


def positions(step: int) -> list[int]:
    """Return group counts over three steps of about `step`: all counts near the steps, few between them."""
    near = {s * step + d for s in (1, 2, 3) for d in range(-4, 6)}
    return sorted(x for x in near | set(range(1, 3 * step + 6, max(1, step // 16))) if x >= 1)
