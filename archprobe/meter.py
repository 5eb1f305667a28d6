"""The instrument of a probe.

Iterations are calibrated to a least time, and sweeps are repeated until their noise is small or the budget is spent.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from archprobe.analysis.answer import Answer
from archprobe.analysis.steps import undisturbed
from archprobe.curve import Curve
from archprobe.devices.base import Device
from archprobe.errors import KernelError

# run(iterations) -> seconds on the device
Run = Callable[[int], float]
_MAX_ITERATIONS = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantity:
    """The quantity on the vertical axis of a curve, and its computation from a time.

    convert: (position, seconds of an iteration) -> value
    is_rate: whether the median of all passes counts. For times the lower quartile does, since disturbances only add
        time
    """

    label: str = "time of an iteration (ns)"
    convert: Callable[[int, float], float] = lambda position, seconds: seconds * 1e9
    is_rate: bool = False


_NANOSECONDS = Quantity()


@dataclasses.dataclass(kw_only=True)
class Meter:
    """Measures times on a device for one probe, within time limits and to a precision.

    least_s: the least time of a run, since timers are coarse
    tolerance: the relative half-width that the median of repeats should reach
    budget_s: the most seconds of one sweep
    earlier_answers: the answers of earlier probes, by "Aspect.Key"
    on_progress: called with the share of the probe that is done
    """

    device: Device
    is_quick: bool = False
    earlier_answers: Mapping[str, Answer] = dataclasses.field(default_factory=dict)
    least_s: float = 5e-4
    tolerance: float = 0.005
    budget_s: float = 20.0
    min_repeats: int = 3
    max_repeats: int = 9
    on_progress: Callable[[float], None] = lambda share: None

    def number(self, key: str) -> float | None:
        """Return a number that an earlier probe found, or None."""
        answer = self.earlier_answers.get(key)
        return None if answer is None or answer.is_declined else answer.number()

    def part(self, start: float, end: float) -> Meter:
        """Return this meter for a part of the probe, from the share `start` to the share `end`."""
        return dataclasses.replace(self, on_progress=lambda share: self.on_progress(start + (end - start) * share))

    def calibrate(self, run: Run, *, least_s: float | None = None, start: int = 8) -> int:
        """Return a number of iterations that make `run` take at least `least_s`.

        KernelError if the time does not grow with the iterations: the compiler removed the work or collapsed the loop.
        """
        least_s = max(least_s or self.least_s, 200e-9 * self.device.facts.timer_step_ns)
        run(start)
        iterations, seconds = start, run(start)
        while seconds < least_s and iterations < _MAX_ITERATIONS:
            # The first runs are mostly overhead: aim a little over, but never more than tenfold at once.
            factor = min(10.0, max(2.0, 1.3 * least_s / seconds))
            iterations = int(min(iterations * factor, _MAX_ITERATIONS))
            seconds = run(iterations)
        if iterations >= _MAX_ITERATIONS:
            raise KernelError(
                f"{iterations} iterations take {seconds:.2e} s: the compiler removed the kernel's work",
                iterations=iterations,
            )
        # Other programs may use the device. Only the least times count, so several tries are needed. A longer run is
        # disturbed less.
        for longer in (1, 4, 16):
            once = twice = np.inf
            for _ in range(6):
                once, twice = min(once, run(longer * iterations)), min(twice, run(2 * longer * iterations))
                if twice / once > 1.3:
                    return longer * iterations
        raise KernelError(
            f"twice the iterations take {twice / once:.2f} times as long, not 2: the time does not follow the work",
            ratio=twice / once,
        )

    def rate(self, run: Run, *, least_s: float | None = None, start: int = 8) -> tuple[np.ndarray, int]:
        """Return the seconds of an iteration, one entry for each repeat, and the iterations of a run."""
        iterations = self.calibrate(run, least_s=least_s, start=start)
        samples: list[float] = []
        end = time.monotonic() + self.budget_s
        # Do all repeats: stopping as soon as a few values agree by chance would underestimate the noise.
        while len(samples) < self.max_repeats and (len(samples) < self.min_repeats or time.monotonic() < end):
            samples.append(run(iterations) / iterations)
        return np.array(samples), iterations

    def sweep(
        self,
        name: str,
        positions: Sequence[int],
        make: Callable[[int], Run],
        *,
        x_label: str,
        is_log_x: bool = False,
        quantity: Quantity = _NANOSECONDS,
        least_s: float | None = None,
    ) -> Curve:
        """Time `make(x)` at every position, pass after pass, so that a drift of the clock spreads over all positions.

        The curve holds the `quantity`. Every point runs the iterations that its least time needs.
        """
        runs = [make(x) for x in positions]
        iterations: list[int] = []
        samples: list[list[float]] = [[] for _ in positions]
        end = time.monotonic() + self.budget_s
        floor_s = max(least_s or self.least_s, 200e-9 * self.device.facts.timer_step_ns)
        for repeat in range(self.max_repeats):
            for i, run in enumerate(runs):
                if repeat == 0:
                    iterations.append(self.iterations(run, iterations[-1] if iterations else None, floor_s))
                samples[i].append(run(iterations[i]) / iterations[i])
                if repeat == 0:
                    self.on_progress(0.9 * (i + 1) / len(runs))
            # At least two passes, so that one spike does not pass for a level. A third if time allows.
            if repeat + 1 >= self.min_repeats and np.median([half_width(s) for s in samples]) < self.tolerance:
                break
            if repeat >= 1 and time.monotonic() > end:
                break
        self.on_progress(1.0)
        # Of two passes, the lower one counts even for rates: one spike must not move it.
        time_of = np.median if quantity.is_rate and len(samples[0]) > 2 else undisturbed
        seconds = [float(time_of(np.array(s))) for s in samples]
        spread = float(np.median([np.std(s) / np.median(s) for s in samples]))
        return Curve(
            name=name,
            x_label=x_label,
            y_label=quantity.label,
            x=tuple(positions),
            y=tuple(map(quantity.convert, positions, seconds)),
            spread=spread,
            repeats=len(samples[0]),
            is_log_x=is_log_x,
        )

    def iterations(self, run: Run, last: int | None, least_s: float | None = None) -> int:
        """Return the iterations for a point: the last point's count if it still fits.

        A full calibration costs several runs.
        """
        least_s = least_s or self.least_s
        if last is None:
            return self.calibrate(run, least_s=least_s)
        seconds = run(last)
        if seconds > 6 * least_s and last > 16:
            return max(8, int(last * 1.5 * least_s / seconds))
        if seconds < 0.7 * least_s:
            return self.calibrate(run, least_s=least_s, start=last)
        return last


def half_width(samples: Sequence[float]) -> float:
    """Return the relative half-width of the median's 95% interval."""
    values = np.asarray(samples)
    middle = float(np.median(values))
    return (
        float(1.96 * 1.2533 * 1.4826 * np.median(np.abs(values - middle)) / middle / np.sqrt(values.size))
        if values.size > 1
        else 1.0
    )


def powers(low: int, high: int) -> list[int]:
    """Return the powers of two from `low` to `high`, both included if they are powers of two."""
    return [2**i for i in range(int(np.ceil(np.log2(low))), int(np.floor(np.log2(high))) + 1)]
