"""Seconds from the start of a process to a model's first output, split into parts: without kept programs, when they are written, and with them.

python scripts/bench_start.py [MODEL ...] [--target TARGET] [--repeat N] [-o FILE.json]      default: the eight bundled networks on opencl -device=host

Each start is a process of its own. PoCL's own cache is switched off (POCL_KERNEL_CACHE=0), NVIDIA's too (CUDA_CACHE_DISABLE=1): they would hide what the
compiler takes. `compile` is the time of the driver's compiler, which PoCL calls in a kernel's first launch as well: what the first run takes longer than
the median of later ones counts as compiling. The first start with a cache takes the programs from the driver and writes them, behind its first run.
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

_STARTS = ("none", "first", "second")
_PARTS = ("import", "load", "weights", "programs", "first run", "total")


def start(model: str, spawned_at: float) -> dict[str, Any]:
    """What a process that was spawned at `spawned_at` does: load and run a saved model once."""
    import romou
    from romou.module import random_inputs

    marks = [time.time()]
    loaded = romou.load(model)
    marks.append(time.time())
    inputs = random_inputs(loaded.inputs, seed=0)
    # As the first call of `run` does it: the virtual machine takes the weights to the device, and programs are made ready.
    report = loaded.programs
    assert report is not None, "the device's runtime keeps no programs"
    marks.append(time.time())
    outputs = loaded.run(inputs)
    marks.append(time.time())
    again = []
    for _ in range(5):
        since = time.perf_counter()
        loaded.run(inputs)
        again.append(time.perf_counter() - since)
    imported_s, load_s, machine_s, run_s = np.diff([spawned_at, *marks])
    seconds = {"import": imported_s, "load": load_s, "weights": machine_s - report.seconds, "programs": report.seconds, "first run": run_s}
    return {
        "seconds": {**seconds, "total": marks[-1] - spawned_at},
        "compile_s": report.seconds + max(0.0, run_s - float(np.median(again))),
        "cached": report.cached,
        "compiled": report.compiled,
        "notes": report.notes,
        "outputs": hashlib.sha256(b"".join(np.ascontiguousarray(o).tobytes() for o in outputs)).hexdigest(),
    }


def measure(saved: Path, cache: Path, repeat: int) -> dict[str, dict[str, Any]]:
    """The medians of `repeat` starts of each kind; the first start writes the cache, so it is measured once."""
    found = {}
    for kind in _STARTS:
        environment = {**os.environ, "ROMOU_CACHE_DIR": str(cache), "POCL_KERNEL_CACHE": "0", "CUDA_CACHE_DISABLE": "1"}
        environment["ROMOU_PROGRAM_CACHE_MB"] = "0" if kind == "none" else "1024"
        runs = []
        for _ in range(1 if kind == "first" else repeat):
            command = [sys.executable, __file__, "--start", str(saved), str(time.time())]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
        found[kind] = runs[0] | {"compile_s": float(np.median([run["compile_s"] for run in runs]))}
        found[kind]["seconds"] = {part: float(np.median([run["seconds"][part] for run in runs])) for part in _PARTS}
        assert len({run["outputs"] for run in runs}) == 1
    assert found["second"]["compiled"] == 0, f"{found['second']['compiled']} programs were compiled in the second start: {found['second']['notes']}"
    assert len({entry["outputs"] for entry in found.values()}) == 1, "a kept program computes something else"
    return found


def main() -> None:
    if sys.argv[1:2] == ["--start"]:
        print(json.dumps(start(sys.argv[2], float(sys.argv[3]))))
        return
    import romou
    from romou import models

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=models.names())
    parser.add_argument("--target", default="opencl -device=host")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    target = romou.Target(options.target)
    facts = target.backend.facts(target.backend.device_index(target.device_name))
    print(f"{facts['name']}, {facts['platform']}, driver {facts['driver']}; seconds, medians of {options.repeat} starts")
    print(f"{'model':17}{'cache':8}{''.join(f'{part:>10}' for part in _PARTS)}{'compile':>10}{'fewer':>8}")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            saved = romou.compile(models.load(name), target=target, verify=False).save(Path(folder) / name)
            found = results[name] = measure(saved, Path(folder) / "cache" / name, options.repeat)
            for kind in _STARTS:
                entry = found[kind]
                fewer = f"{found['none']['compile_s'] / max(entry['compile_s'], 1e-3):7.1f}x" if kind == "second" else ""
                numbers = "".join(f"{entry['seconds'][part]:10.3f}" for part in _PARTS)
                print(f"{name if kind == 'none' else '':17}{kind:8}{numbers}{entry['compile_s']:10.3f}{fewer}", flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps({"device": facts, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
