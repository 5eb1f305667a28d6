"""Measures the seconds from the start of a process to a model's first output, split into stages.

The first start compiles and keeps programs, the second one loads them.

python benchmarks/bench_start.py [MODEL ...] [--target TARGET] [--repeat N] [--driver-caches] [-o FILE.json]
default: the eight bundled networks on opencl -device=host

Each start is a new process. The caches of PoCL (POCL_KERNEL_CACHE=0) and NVIDIA (CUDA_CACHE_DISABLE=1) are off, because
they would hide the compile time. With --driver-caches they are on, as for a user, and empty before the first start.
PoCL's is always on where it alone keeps programs, as the quirk `pocl_headers` has it.
PoCL also compiles in a kernel's first launch, so `compile` is the time of `programs` plus the excess of the first run
over the median of later ones. `keep` is the time of reading programs from the driver and writing them, after the first
output. No other column includes it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

_PARTS = ("import", "load", "weights", "programs", "first run", "total", "compile", "keep")


def start(model: str, spawned_at: float) -> dict[str, Any]:
    """Load and run a saved model once, in a process that was spawned at `spawned_at`, and return its times."""
    import romou
    from romou.base.inputs import random_inputs

    marks = [time.time()]
    loaded = romou.load(model)
    marks.append(time.time())
    inputs = random_inputs(loaded.inputs, seed=0)
    # The first call of `run` does the same: the virtual machine copies the weights to the device, and programs are
    # compiled.
    assert loaded.programs is not None, "the device's runtime keeps no programs"
    marks.append(time.time())
    outputs = loaded.run(inputs)
    marks.append(time.time())
    again = []
    for _ in range(5):
        since = time.perf_counter()
        loaded.run(inputs)
        again.append(time.perf_counter() - since)
    report = loaded.programs
    assert report is not None
    imported_s, load_s, machine_s, run_s = np.diff([spawned_at, *marks])
    run_s -= report.keep_s
    compile_s = report.seconds + max(0.0, run_s - float(np.median(again)))
    values = (
        imported_s,
        load_s,
        machine_s - report.seconds,
        report.seconds,
        run_s,
        marks[-1] - spawned_at - report.keep_s,
        compile_s,
        report.keep_s,
    )
    return {
        "seconds": dict(zip(_PARTS, values, strict=True)),
        "cached": report.cached,
        "compiled": report.compiled,
        "notes": report.notes,
        "outputs": hashlib.sha256(b"".join(np.ascontiguousarray(o).tobytes() for o in outputs)).hexdigest(),
    }


def driver_caches(folder: Path | None) -> dict[str, str]:
    """Return environment variables that make drivers keep compiled programs in `folder`, or nowhere if it is None."""
    if folder is None:
        return {"POCL_KERNEL_CACHE": "0", "CUDA_CACHE_DISABLE": "1"}
    folder.mkdir(parents=True)
    return {
        "POCL_KERNEL_CACHE": "1",
        "POCL_CACHE_DIR": str(folder),
        "CUDA_CACHE_DISABLE": "0",
        "CUDA_CACHE_PATH": str(folder),
    }


def measure(saved: Path, cache: Path, repeat: int, *, with_drivers: bool, is_kept: bool) -> dict[str, dict[str, Any]]:
    """Return the medians of `repeat` pairs of starts. Each pair begins with an empty cache.

    is_kept: whether Romou keeps programs.
    """
    starts: dict[str, list[dict[str, Any]]] = {"first": [], "second": []}
    for number in range(repeat):
        own = {"ROMOU_CACHE_DIR": f"{cache}{number}", "ROMOU_PROGRAM_CACHE_MB": "1024"}
        own |= driver_caches(Path(f"{cache}{number}") / "driver" if with_drivers else None)
        for runs in starts.values():
            command = [sys.executable, __file__, "--start", str(saved), str(time.time())]
            done = subprocess.run(command, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True, check=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    for run in starts["second"] if is_kept else ():
        assert run["compiled"] == 0, f"{run['compiled']} programs were compiled in the second start: {run['notes']}"
    assert len({run["outputs"] for runs in starts.values() for run in runs}) == 1, (
        "a kept program computes something else"
    )
    return {
        kind: runs[0] | {"seconds": {part: float(np.median([run["seconds"][part] for run in runs])) for part in _PARTS}}
        for kind, runs in starts.items()
    }


def main() -> None:
    if sys.argv[1:2] == ["--start"]:
        print(json.dumps(start(sys.argv[2], float(sys.argv[3]))))
        return
    import romou
    from romou import models
    from romou.devices.hardware.quirks import rules_for

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=models.names())
    parser.add_argument("--target", default="opencl -device=host")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--driver-caches", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    target = romou.Target(options.target)
    facts = target.backend.facts(target.backend.device_index(target.device_name))
    is_kept = not rules_for(facts).compiles_as_one
    with_drivers = options.driver_caches or not is_kept
    print(
        f"{facts['name']}, {facts['platform']}, driver {facts['driver']}; seconds, medians of {options.repeat} starts",
        end="",
    )
    print(", with the drivers' caches" if with_drivers else "")
    print(f"{'model':17}{'start':8}{''.join(f'{part:>10}' for part in _PARTS)}")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            saved = romou.compile(models.load(name), target=target, verify=False).save(Path(folder) / name)
            starts = results[name] = measure(
                saved, Path(folder) / "cache" / name, options.repeat, with_drivers=with_drivers, is_kept=is_kept
            )
            for kind, entry in starts.items():
                print(
                    f"{name if kind == 'first' else '':17}{kind:8}"
                    + "".join(f"{entry['seconds'][part]:10.3f}" for part in _PARTS),
                    end="",
                )
                print(
                    ""
                    if kind == "first"
                    else f"   {starts['first']['seconds']['compile'] / entry['seconds']['compile']:.1f}x less"
                    " compiling",
                    flush=True,
                )
    if options.output is not None:
        options.output.write_text(json.dumps({"device": facts, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
