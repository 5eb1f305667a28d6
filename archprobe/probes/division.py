"""What an integer division costs, against a multiplication: whether index arithmetic should avoid dividing."""

from __future__ import annotations

import numpy as np

from archprobe.analysis.answer import Answer, ratio
from archprobe.analysis.bandwidth import rate
from archprobe.bench import Bench
from archprobe.curve import Findings
from archprobe.probes.arithmetic import full_grid
from archprobe.probes.probe import Probe

_SOURCE = """
__kernel void chain(int n, __global int *out, int d) {
  int x[4];
  for (int i = 0; i < 4; ++i) x[i] = 0x7fffff0 + 97 * (int)get_local_id(0) + i;
  for (int k = 0; k < n; ++k)
    for (int u = 0; u < 4; ++u)
      for (int i = 0; i < 4; ++i) x[i] = STEP;
  if (x[0] + x[1] + x[2] + x[3] == 12345) out[0] = 1;
}
"""
# The term keeps the numbers large and unknown; it costs all kernels the same.
_STEPS = {"Multiply": "x[i] * d + 0x3fffff1", "Divide": "x[i] / d + 0x3fffff1", "Remainder": "x[i] % d + 0x3fffff1", "Shift": "(x[i] >> (d & 7)) + 0x3fffff1"}


def measure(bench: Bench) -> Findings:
    device = bench.device
    groups, size = full_grid(bench)
    out = device.buffer(64)
    answers: dict[str, Answer] = {}
    for i, (name, step) in enumerate(_STEPS.items()):
        kernel = device.kernel(_SOURCE.replace("STEP", step), "chain")
        run = lambda n, kernel=kernel: device.launch(kernel, groups * size, size, np.int32(n), out, np.int32(3))
        seconds, _ = bench.rate(run)
        answers[f"{name}Rate"] = rate(groups * size * 16 / seconds * 1e-9, "1e9 operations/s")
        bench.on_progress((i + 1) / len(_STEPS))
    reason = "rate of multiplications over rate of divisions"
    answers["DivideCost"] = ratio(answers["MultiplyRate"], answers["DivideRate"], "multiplications", 0.9, reason)
    return Findings(answers=answers)


PROBE = Probe(
    name="division",
    aspect="IntegerDivision",
    title="Cost of integer division",
    method="chains of 32-bit integer operations with an operand from run time, on all cores",
    measure=measure,
)
