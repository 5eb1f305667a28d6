#!/usr/bin/env python3
"""Measures how much faster two devices behind a tracker tune than one.

The processes are real and use this machine's loopback, with PoCL as the devices.

    python benchmarks/bench_rpc.py                                 squeezenet1_0, 48 trials on one server, then on two
    python benchmarks/bench_rpc.py --model resnet18 --trials 96 --servers 1,2,4

Each server is pinned to one core, as a phone has its own processor, if there are enough cores. Candidates are built
here, on all of them. The throughput is measured from the first finished trial of the search to the last, builds
included. The tuned model runs over RPC as well and is compared with onnxruntime.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import romou
from romou import models
from romou.runtime.rpc import Address
from romou.runtime.rpc.tracker import Tracker
from romou.tuner.records import RecordStore

_KEY = "bench"
_START_S = 120.0


@contextlib.contextmanager
def process(command: list[str], core: int | None = None) -> Iterator[None]:
    """Run a command while the block runs, pinned to `core` if given."""
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True) as running,
    ):
        if core is not None:
            os.sched_setaffinity(running.pid, {core})
        try:
            yield
        finally:
            # The tracker starts a child process that does the work.
            os.killpg(running.pid, signal.SIGTERM)


@contextlib.contextmanager
def devices(count: int) -> Iterator[str]:
    """Yield the address of a tracker with `count` servers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cores = sorted(os.sched_getaffinity(0))
    tracker = [
        sys.executable,
        "-m",
        "tvm.exec.rpc_tracker",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--port-end",
        str(port + 1),
        "--silent",
    ]
    server = [
        sys.executable,
        "-m",
        "romou.cli",
        "serve",
        "--port",
        "0",
        "--key",
        _KEY,
        "--tracker",
        f"127.0.0.1:{port}",
    ]
    address = f"tracker://127.0.0.1:{port}/{_KEY}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(process(tracker))
        for i in range(count):
            stack.enter_context(process(server, cores[i % len(cores)]))
        wait_for(address, count)
        yield address


def wait_for(address: str, count: int) -> None:
    """Wait until the tracker has `count` servers."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        with contextlib.suppress(romou.RomouError), contextlib.closing(Tracker(Address.parse(address))) as tracker:
            if len(tracker.servers().get(_KEY, ())) == count:
                return
        time.sleep(0.2)
    raise SystemExit(f"{count} servers did not start within {_START_S:g} s")


def measure(model: str, trials: int, servers: int) -> dict[str, Any]:
    """Tune a bundled model on `servers` servers."""
    with tempfile.TemporaryDirectory() as folder, devices(servers) as address:
        summary = romou.tune(models.load(model), rpc=address, trials=trials, work_dir=folder, progress=True).summary()
        with RecordStore(folder) as store:
            ends = [datetime.datetime.fromisoformat(record.time) for record in store]
            ratios = [record.clock_ratio for record in store if record.clock_ratio is not None]
    seconds = (max(ends) - min(ends)).total_seconds()
    return {
        "servers": servers,
        "trials_per_s": (len(ends) - 1) / seconds,
        "seconds": summary.seconds,
        "default_ms": summary.default_ms,
        "tuned_ms": summary.tuned_ms,
        "error": summary.relative_l2_error,
        "is_right": summary.is_right,
        "outcomes": summary.outcomes,
        "largest_clock_ratio": max(ratios),
    }


def server_counts(_ctx: click.Context, _option: click.Parameter, text: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise click.BadParameter("expected numbers with commas between them, for example 1,2")
    return [int(part) for part in text.split(",")]


@click.command()
@click.option("--model", default="squeezenet1_0", show_default=True, help="A bundled model.")
@click.option("--trials", default=48, show_default=True, help="Over all tasks, on each number of servers.")
@click.option(
    "--servers", default="1,2", show_default=True, callback=server_counts, help="Numbers of servers to compare."
)
@click.option("--json", "output", type=click.Path(path_type=Path), default=None, help="Also write every number here.")
def main(model: str, trials: int, servers: list[int], output: Path | None) -> None:
    """Print one table. The exit code is 1 if a tuned model is wrong."""
    rows = [measure(model, trials, count) for count in servers]
    if output is not None:
        output.write_text(json.dumps({"model": model, "trials": trials, "rows": rows}, indent=1))
    columns = ("servers", "trials / s", "ratio", "seconds in all", "default ms", "tuned ms", "error", "outcomes")
    table = Table(*columns, title=f"{model}, {trials} trials, {os.cpu_count()} cores")
    for row in rows:
        rate = row["trials_per_s"]
        cells = [
            f"{rate:.2f}",
            f"{rate / rows[0]['trials_per_s']:.2f}x",
            f"{row['seconds']:.0f}",
            f"{row['default_ms']:.1f}",
            f"{row['tuned_ms']:.1f}",
        ]
        outcomes = ", ".join(f"{name} {count}" for name, count in row["outcomes"].items())
        table.add_row(str(row["servers"]), *cells, f"{row['error']:.1e}", outcomes)
    Console(width=140).print(table)
    raise SystemExit(0 if all(row["is_right"] for row in rows) else 1)


if __name__ == "__main__":
    main()
