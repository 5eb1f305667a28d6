"""Peak rates of fp32, fp16 and 8-bit dot products, scalar or vector architecture, ALUs of a core."""

from __future__ import annotations

import numpy as np

from archprobe.analysis import throughput
from archprobe.analysis.answer import Answer, answered, declined
from archprobe.bench import Bench, Run
from archprobe.curve import Curve, Findings
from archprobe.errors import BuildError, KernelError
from archprobe.probes.arithmetic import full_grid, multiply_add
from archprobe.probes.probe import Probe

_WIDTHS = (1, 2, 4, 8, 16)
_CHAINS = 16

# Extension or API -> how it spells "c + dot of four signed bytes". The first one that the device has is used.
_DOTS = {
    "cuda": "c = __dp4a(a, b, c);",
    "cl_khr_integer_dot_product": "c = dot_acc_sat(a, b, c);",
    "cl_arm_integer_dot_product_accumulate_int8": "c = arm_dot_acc(a, b, c);",
    "cl_qcom_dot_product8": "c = qcom_dot8_acc(as_uint(a), as_uint(b), c);",
    "cl_nv_compiler_options": 'asm volatile("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(as_int(a)), "r"(as_int(b)));',
}
_PLAIN = "c += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;"
_DOT_SOURCE = """
__kernel void dots(int n, __global int *out, int seed) {
  int x[CHAINS];
  char4 b = as_char4(seed);
  for (int i = 0; i < CHAINS; ++i) x[i] = get_local_id(0) + i;
  for (int k = 0; k < n; ++k) {
    #pragma unroll
    for (int u = 0; u < 8; ++u) {
      #pragma unroll
      for (int i = 0; i < CHAINS; ++i) { char4 a = as_char4(x[i]); int c = x[i]; STEP x[i] = c; }
    }
  }
  int sum = 0;
  for (int i = 0; i < CHAINS; ++i) sum += x[i];
  if (sum == 12345) out[0] = 1;
}
"""


def measure(bench: Bench) -> Findings:
    answers: dict[str, Answer] = {}
    curves = []
    for base, key, share in (("float", "Float", 0.0), ("half", "Half", 0.5)):
        if base == "half" and "cl_khr_fp16" not in bench.device.facts.extensions:
            for name, unit in (("Gflops", "GFLOPS"), ("Arch", "word"), ("VecComponentCount", "components")):
                answers[f"{key}{name}"] = declined(unit, "not applicable: the probe finds no fp16 arithmetic here (cl_khr_fp16)")
            continue
        curve = _rates(bench, base, (share, share + 0.4))
        noise = max(curve.spread, 0.002)
        answers[f"{key}Gflops"] = throughput.peak_rate(curve.xs, curve.ys, noise=noise, repeats=curve.repeats)
        kind, components = throughput.architecture(curve.xs, curve.ys, noise=noise, repeats=curve.repeats)
        answers[f"{key}Arch"], answers[f"{key}VecComponentCount"] = kind, components
        curves.append(curve)
    answers["Int8Gops"] = _dots(bench)
    answers["AluCount"] = _alus(bench, answers["FloatGflops"])
    answers["Autobroadcast"] = _broadcast(bench)
    return Findings(answers=answers, curves=tuple(curves))


def _alus(bench: Bench, peak: Answer) -> Answer:
    facts = bench.device.facts
    if facts.is_cpu:
        return declined("count", "not applicable: the lanes of a CPU's cores are those of its vectors")
    cores = bench.number("Cores.CoreCount")
    return throughput.alus_per_core(peak, facts.clock_mhz, round(cores) if cores else facts.compute_units)


def _rates(bench: Bench, base: str, share: tuple[float, float]) -> Curve:
    groups, size = full_grid(bench)
    operations: dict[int, float] = {}

    def make(components: int) -> Run:
        run, operations[components] = multiply_add(bench, base=base, components=components, groups=groups, group_size=size)
        return run

    return bench.sweep(
        f"{base} multiply-add",
        [width for width in _WIDTHS if width <= bench.device.widest],
        make,
        x_label="vector components",
        y_label="GFLOPS",
        convert=lambda width, seconds: operations[width] / seconds * 1e-9,
        is_log_x=True,
        is_absolute=True,
        least_s=2e-3,
        share=share,
    )


def _dots(bench: Bench) -> Answer:
    """Measure the peak rate of 8-bit dot products, in 1e9 operations a second (2 for each of a product's four multiplications)."""
    unit = "GOPS"
    facts = bench.device.facts
    groups, size = full_grid(bench)
    found = [(name, step) for name, step in _DOTS.items() if name in (*facts.extensions, facts.api)] + [("", _PLAIN)]
    for extension, step in found:
        pragma = f"#pragma OPENCL EXTENSION {extension} : enable\n" if extension.startswith(("cl_khr", "cl_arm")) else ""
        source = pragma + _DOT_SOURCE.replace("STEP", step).replace("CHAINS", str(_CHAINS))
        try:
            kernel = bench.device.kernel(source, "dots")
        except BuildError:
            continue
        out = bench.device.buffer(64)
        run = lambda n, kernel=kernel, out=out: bench.device.launch(kernel, groups * size, size, np.int32(n), out, np.int32(0x01010101))
        try:
            seconds, _ = bench.rate(run, least_s=2e-3)
        except KernelError as error:
            return declined(unit, error.message)
        operations = 2.0 * 4 * groups * size * _CHAINS * 8
        gops = np.array([operations / float(np.median(seconds)) * 1e-9])
        rate = throughput.peak_rate(np.array([4.0]), gops, unit, noise=max(float(np.std(seconds) / np.mean(seconds)), 0.002), repeats=seconds.size)
        way = f"dot products of four bytes by {extension}" if extension else "four bytes multiplied and added: no dot product instruction is on offer"
        return rate.with_notes(way)
    return declined(unit, "no kernel of 8-bit products was built")


def _broadcast(bench: Bench) -> Answer:
    """Measure whether a scalar factor for a vector costs no more than a vector factor (autobroadcast, paper, section 4.1)."""
    groups, size = full_grid(bench)
    rates = {}
    for is_broadcast in (False, True):
        run, operations = multiply_add(bench, components=4, groups=groups, group_size=size, is_broadcast=is_broadcast, is_fused=False)
        seconds, _ = bench.rate(run, least_s=2e-3)
        rates[is_broadcast] = (operations / float(np.median(seconds)), float(np.std(seconds) / np.mean(seconds)))
    ratio = rates[True][0] / rates[False][0]
    noise = max(rates[True][1], rates[False][1])
    reason = f"multiply-adds of four components run at {ratio:.2f} times the rate where the factor is one scalar"
    if abs(ratio - 0.95) < 2 * noise:
        return declined("yes or no", f"{reason}; noise of {noise:.1%} hides the answer")
    return answered(bool(ratio > 0.95), "yes or no", 0.9, reason)


PROBE = Probe(
    name="gflops",
    aspect="Gflops",
    title="Peak arithmetic",
    method="chains of multiply-adds with factors from run time, by vector width (paper, section 3.1); ALUs = peak / (2 x clock x cores)",
    measure=measure,
)
