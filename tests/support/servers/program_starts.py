"""Starts of a saved model, each in a process that may crash. They report the programs that came from the cache and the
compiled ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import romou
from romou.base.inputs import random_inputs
from romou.devices.backends.programs import ProgramReport

# The number of processes to kill: a few in the suite, 100 on demand.
KILLS = int(os.environ.get("PROGRAM_CACHE_KILLS", "2"))
# A process that has loaded TVM and no driver. Each start of the model is a fork of it.
_STARTS = """
import json, os, random, signal, sys, time
import romou, tvm
from romou.base.inputs import random_inputs
saved, right = sys.argv[1], open(sys.argv[2], "rb").read()
inputs = random_inputs(romou.load(saved).inputs, seed=0)

def begin(**environment):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.environ.update(environment)
            model = romou.load(saved)
            os.write(write, b"[")
            report = model.programs
            assert b"".join(o.tobytes() for o in model.run(inputs)) == right
            os.write(write, json.dumps([report.cached, report.compiled, report.notes, model.programs.keep_s]).encode())
            code = 0
        except romou.RomouError as error:
            os.write(write, json.dumps(str(error)).encode())
            code = 2
        finally:
            os._exit(code)
    os.close(write)
    assert os.read(read, 1) == b"["
    return pid, read

def end(pid, read):
    with os.fdopen(read) as file:
        text = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), json.loads(text) if text else None
"""
CRASHES = """
for flaw in sys.argv[3:]:
    print(json.dumps(end(*begin(STANDIN=flaw))), flush=True)
"""


def outputs_of(model: romou.TunedModel) -> bytes:
    return b"".join(o.tobytes() for o in model.run(random_inputs(model.inputs, seed=0)))


def start(saved: Path, right: bytes) -> ProgramReport:
    """Start the model in this process, assert that its outputs are right, and return the report."""
    model = romou.load(saved)
    report = model.programs
    assert report is not None
    assert outputs_of(model) == right
    return report


def starts(script: str, *arguments: object, **environment: str) -> list[str]:
    """Return the output lines of a script that begins and ends starts."""
    command = [sys.executable, "-c", _STARTS + script, *map(str, arguments)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60 + 30 * KILLS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
