"""Spaces recorded by other tools, in T4 or in Kernel Tuner's cache format, plain or gzipped.

They serve searches that use only knobs and measured times.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from romou.base.errors import RecordError
from romou.base.outcome import Outcome
from romou.tuner.records.recorded_space import RecordedConfig, RecordedSpace
from romou.tuner.records.t4 import OUTCOME_OF

_S_OF_MS = 1e-3
# Error texts that Kernel Tuner's cache stores in place of a failed config's time.
_CACHE_ERRORS = {
    "CompilationFailedConfig": Outcome.BUILD_ERROR,
    "InvalidConfig": Outcome.INVALID,
    "RuntimeFailedConfig": Outcome.RUN_ERROR,
}
_PARTS = ("compile_time", "framework_time", "verification_time", "benchmark_time")
_SUFFIXES = (".gz", ".json", "_T4")


def load_foreign(path: Path) -> RecordedSpace:
    """Read a T4 file (schema 1) or a cache of Kernel Tuner as a recorded space. RecordError if it is neither.

    Knobs are the parameters. Their choices are the recorded values in ascending order. The space holds only the
    recorded configs, so constraints are kept. Each config has one time, the objective that the tuner saw. Such files do
    not name a default, so the first config is used as one.
    """
    try:
        raw = path.read_bytes()
        data = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        entries = list(_of_t4(data) if "results" in data else _of_cache(data))
        names = list(entries[0][0])
        # The values of each knob have one type, so they can be sorted.
        knobs = {name: tuple(sorted({config[name] for config, *_ in entries})) for name in names}
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, EOFError, zlib.error) as error:
        raise RecordError(f"{path}: neither T4 nor a cache of Kernel Tuner: {type(error).__name__}: {error}") from error
    name = path.name
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    space = RecordedSpace(
        name=name, task={"key": name, "name": name}, knobs=knobs, device={"name": name.rpartition("-")[2]}, context={}
    )
    digits = {knob: {choice: digit for digit, choice in enumerate(choices)} for knob, choices in knobs.items()}
    for config, outcome, time_s, build_s, run_s in entries:
        index = 0
        for knob, choices in knobs.items():
            index = index * len(choices) + digits[knob][config[knob]]
        times = (time_s,) if outcome == Outcome.OK and time_s is not None else ()
        space.configs[index] = RecordedConfig(index=index, outcome=outcome, times_s=times, build_s=build_s, run_s=run_s)
    if not any(config.time_s for config in space.configs.values()):
        raise RecordError(f"{path}: no config has a time")
    space.context["default"] = next(iter(space.configs))
    return space


# Config, outcome, seconds of the kernel, seconds of its build and of the rest.
_Found = tuple[Mapping[str, Any], Outcome, float | None, float, float]


def _of_t4(data: Mapping[str, Any]) -> Iterable[_Found]:
    for result in data["results"]:
        measured = {measurement["name"]: measurement["value"] for measurement in result.get("measurements", ())}
        times = result["times"]
        outcome = OUTCOME_OF[result["invalidity"]]
        time_ms = float(measured[result["objectives"][0]]) if outcome == Outcome.OK else None
        rest = sum(float(times.get(name, 0.0)) for name in ("framework", "validation")) + sum(
            map(float, times.get("runtimes") or ())
        )
        build_ms = float(times.get("compilation_time", times.get("compilation", 0.0)))
        yield (
            result["configuration"],
            outcome,
            None if time_ms is None else time_ms * _S_OF_MS,
            build_ms * _S_OF_MS,
            rest * _S_OF_MS,
        )


def _of_cache(data: Mapping[str, Any]) -> Iterable[_Found]:
    names, objective = data["tune_params_keys"], data.get("objective", "time")
    for entry in data["cache"].values():
        value = entry[objective]
        outcome = _CACHE_ERRORS[value] if isinstance(value, str) else Outcome.OK
        build_ms, *rest = (float(entry.get(name) or 0.0) for name in _PARTS)
        time_s = None if outcome != Outcome.OK else float(value) * _S_OF_MS
        yield {name: entry[name] for name in names}, outcome, time_s, build_ms * _S_OF_MS, sum(rest) * _S_OF_MS
