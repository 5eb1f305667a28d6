"""Options for building, running, checking and timing candidates."""

from __future__ import annotations

import dataclasses

from romou.base.options import CheckedOptions, number, whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureOptions(CheckedOptions):
    """Limits and repeats of a measurement.

    build_timeout_s       one candidate's build, from TIR to a library file
    build_workers         build processes; None: one a CPU core, at most 8
    run_timeout_s         one candidate on the device: load, run, check and time together
    reference_timeout_s   the reference result of one task on the CPU, once a session
    repeat                timings kept of a candidate
    min_repeat_ms         launches are repeated until one timing takes this long, within a third of run_timeout_s for all of them
    skip_ratio            a candidate whose first launch takes this many times the best is not timed any further
    race_ratio            one whose first timing is this many times the best keeps only that one
    winner_repeat         timings kept of a candidate that is measured again at the end, as it may be the result
    trust_runs            runs of a winner before it is kept, on two sets of inputs in turns: its outputs must not change in a bit; 0: none
    trust_s               at most so long, where a run takes long
    seed                  of the input data

    For devices behind a connection:

    connect_timeout_s     until a server answers
    upload_timeout_s      one candidate's library
    unreachable_s         without any device before the run ends
    clock_every_s         how long the speed of a device's clock is taken for unchanged
    clock_limit           a reference kernel this many times slower than at its best lets the device cool down
    cool_down_s           at most so long at a time; 0: never. CPUs, whose clock others' work hides, never do
    """  # noqa: E501

    build_timeout_s: float = number(30.0)
    build_workers: int | None = whole(None)
    run_timeout_s: float = number(15.0)
    reference_timeout_s: float = number(300.0)
    repeat: int = whole(3)
    min_repeat_ms: float = number(20.0, lowest=0)
    skip_ratio: float = number(3.0, lowest=1)
    race_ratio: float = number(1.25, lowest=1)
    winner_repeat: int = whole(9)
    trust_runs: int = whole(64, lowest=0)
    trust_s: float = number(2.0)
    seed: int = whole(0, lowest=0)
    connect_timeout_s: float = number(20.0)
    upload_timeout_s: float = number(60.0)
    unreachable_s: float = number(120.0)
    clock_every_s: float = number(10.0, lowest=0)
    clock_limit: float = number(1.15, lowest=1)
    cool_down_s: float = number(60.0, lowest=0)
