"""Options for building, running, checking and timing candidates."""

from __future__ import annotations

import dataclasses

from romou.base.checked_options import CheckedOptions, number, whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasureOptions(CheckedOptions):
    """Limits and repeats of a measurement.

    build_timeout_s       limit for building one candidate, from TIR to a library file
    build_workers         build processes. None: one per CPU core, at most 8
    run_timeout_s         limit for one candidate on the device: load, run, check and time together
    reference_timeout_s   limit for the reference result of one task on the CPU, computed once a session
    repeat                timings of a candidate
    min_repeat_ms         launches are repeated until one timing takes this long, by default 5 ms through CUDA. All
                          timings together take at most a third of run_timeout_s
    skip_ratio            a candidate is not timed further if its first launch takes this many times the best time
    race_ratio            a candidate keeps only its first timing if that is this many times the best time
    winner_repeat         timings of a candidate that is measured again at the end, because it may be the result
    trust_runs            runs of a winner before it is kept, on two sets of inputs in turns. No bit of its outputs may
                          change between them. 0: none
    trust_s               limit for these runs
    seed                  seed of the input data

    For devices behind a connection:

    connect_timeout_s     limit for a server's answer
    upload_timeout_s      limit for uploading one candidate's library
    unreachable_s         the run ends after this time without any device
    clock_every_s         interval of checks of a device's clock speed
    clock_limit           the device cools down if a reference kernel is this many times slower than its best time
    cool_down_s           longest time of one cool-down. 0: never. CPUs never cool down, because load from other
                          processes hides their clock
    hold_clock_ms         the reference kernel runs this long before each timing, so that the device's clock is up, and
                          is timed right before and after each candidate. 0: neither
    """

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
    hold_clock_ms: float = number(0.0, lowest=0)
