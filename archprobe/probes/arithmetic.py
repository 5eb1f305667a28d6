"""Arithmetic rates of all cores: chains of multiply-adds, and other operations.

No compiler can shorten the chains, since their factors are run-time values.
"""

from __future__ import annotations

import time

import numpy as np

from archprobe.analysis import throughput
from archprobe.analysis.answer import Answer, declined, ratio
from archprobe.analysis.bandwidth import rate
from archprobe.curve import Curve, Findings
from archprobe.devices.base import defines
from archprobe.errors import BuildError, KernelError
from archprobe.meter import Meter, Quantity, Run
from archprobe.probes.probe import probe

# Independent values that a work-item keeps in flight: enough to hide the latency of a multiply-add.
LANES = 16
_UNROLL = 8

# T is the scalar type, V the vector. Every value depends only on its previous one. Each component starts from a
# different number, because the compiler would otherwise merge them.
_SOURCE = """
#ifdef USES_HALF
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif
__kernel void multiply_add(int n, __global float *out, float factor, float term) {
  T next = (T)(factor);
  FACTOR a = (FACTOR)((T)(next));
  const V b = (V)((T)(term));
  V x[CHAINS];
  V lanes;
  FILL_LANES
  for (int i = 0; i < CHAINS; ++i) x[i] = lanes + (V)((T)(get_local_id(0) + i));
  for (int k = 0; k < n; ++k) {
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      NEXT_FACTOR
      #pragma unroll
      for (int i = 0; i < CHAINS; ++i) x[i] = MULTIPLY_ADD;
    }
  }
  V sum = x[0];
  for (int i = 1; i < CHAINS; ++i) sum += x[i];
  /* Never true, which only the run shows: nothing is written, and nothing can be removed. */
  if (TOTAL(sum) == (T)(12345)) out[0] = 1;
}
"""


def vector(base: str, components: int) -> str:
    return base if components == 1 else f"{base}{components}"


def multiply_add(
    meter: Meter,
    *,
    base: str = "float",
    components: int = 1,
    groups: int,
    group_size: int,
    is_broadcast: bool = False,
    is_fused: bool = True,
    is_factor_new: bool = False,
) -> tuple[Run, float]:
    """Return a run of multiply-add chains, and the operations of one iteration over all work-items.

    A multiply-add counts as 2 operations.

    With `is_broadcast` the factor is one scalar for all components, else a vector (paper, section 4.1). A product of
    scalar and vector cannot be written as fma, so without `is_fused` the compiler fuses. With `is_factor_new` the
    factor changes with each step of the chains, so that a vector of copies is made each time.
    """
    chains = max(1, LANES // components)
    macros = {
        "T": base,
        "V": vector(base, components),
        "CHAINS": chains,
        "UNROLL": _UNROLL,
        "MULTIPLY_ADD": "fma(x[i], a, b)" if is_fused else "x[i] * a + b",
        "FILL_LANES": " ".join(
            f"lanes{'' if components == 1 else meter.device.lane(lane)} = (T)({lane}.5f);" for lane in range(components)
        ),
        "NEXT_FACTOR": "next += (T)(term); a = (FACTOR)((T)(next));" if is_factor_new else "",
        "FACTOR": base if is_broadcast else vector(base, components),
        # All components are added up: the compiler would remove any that is not read.
        "TOTAL(v)": (
            "v" if components == 1 else " + ".join(f"(v){meter.device.lane(lane)}" for lane in range(components))
        ),
    }
    source = defines(macros) + _SOURCE
    if base == "half":
        source = "#define USES_HALF\n" + source
    kernel = meter.device.kernel(source, "multiply_add")
    out = meter.device.buffer(64)
    factor, term = np.float32(0.999), np.float32(1e-3)

    def run(iterations: int) -> float:
        return meter.device.launch(kernel, groups * group_size, group_size, np.int32(iterations), out, factor, term)

    return run, 2.0 * groups * group_size * chains * components * _UNROLL


def full_grid(meter: Meter, group_size: int = 256) -> tuple[int, int]:
    """Return (groups, group size) that fill every unit several times over."""
    facts = meter.device.facts
    size = min(group_size, facts.max_work_group_size)
    return (facts.units * 4, min(size, 64)) if facts.is_cpu else (facts.units * 32, size)


_HALF_ARITHMETIC = ("cl_khr_fp16", "shaderFloat16")
_WIDTHS = (1, 2, 4, 8, 16)
_CHAINS = 16

# Extension or API -> its spelling of "c + dot of four signed bytes". The first one that the device has is used.
_DOTS = {
    "cuda": "c = __dp4a(a, b, c);",
    "cl_khr_integer_dot_product": "c = dot_acc_sat(a, b, c);",
    "cl_arm_integer_dot_product_accumulate_int8": "c = arm_dot_acc(a, b, c);",
    "cl_qcom_dot_product8": "c = qcom_dot8_acc(as_uint(a), as_uint(b), c);",
    "cl_nv_compiler_options": (
        'asm volatile("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(as_int(a)), "r"(as_int(b)));'
    ),
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


@probe(
    aspect="Gflops",
    title="Peak arithmetic",
    method=(
        "chains of multiply-adds with factors from run time, by vector width (paper, section 3.1); ALUs = peak / (2 x"
        " clock x cores)"
    ),
)
def gflops(meter: Meter) -> Findings:
    answers: dict[str, Answer] = {}
    curves = []
    for base, key, part in (("float", "Float", meter.part(0.0, 0.4)), ("half", "Half", meter.part(0.5, 0.9))):
        if base == "half" and not {*_HALF_ARITHMETIC} & {*meter.device.facts.extensions}:
            for name, unit in (("Gflops", "GFLOPS"), ("Arch", "word"), ("VecComponentCount", "components")):
                answers[f"{key}{name}"] = declined(
                    unit, f"not applicable: the probe finds no fp16 arithmetic here ({' or '.join(_HALF_ARITHMETIC)})"
                )
            continue
        curve = _rates(part, base)
        noise = max(curve.spread, 0.002)
        answers[f"{key}Gflops"] = throughput.peak_rate(curve.xs, curve.ys, noise=noise, repeats=curve.repeats)
        kind, components = throughput.architecture(curve.xs, curve.ys, noise=noise, repeats=curve.repeats)
        answers[f"{key}Arch"], answers[f"{key}VecComponentCount"] = kind, components
        curves.append(curve)
    answers["Int8Gops"] = _dots(meter)
    answers["AluCount"] = _alus(meter, answers["FloatGflops"])
    answers["Autobroadcast"] = _broadcast(meter)
    answers["BroadcastPays"] = _broadcast_pays(meter)
    return Findings(answers=answers, curves=tuple(curves))


def _alus(meter: Meter, peak: Answer) -> Answer:
    facts = meter.device.facts
    if facts.is_cpu:
        return declined("count", "not applicable: the lanes of a CPU's cores are those of its vectors")
    cores = meter.number("Cores.CoreCount")
    return throughput.alus_per_core(peak, facts.clock_mhz, round(cores) if cores else facts.compute_units)


def _rates(meter: Meter, base: str) -> Curve:
    groups, size = full_grid(meter)
    operations: dict[int, float] = {}

    def make(components: int) -> Run:
        run, operations[components] = multiply_add(
            meter, base=base, components=components, groups=groups, group_size=size
        )
        return run

    gflops_of = lambda width, seconds: operations[width] / seconds * 1e-9
    return meter.sweep(
        f"{base} multiply-add",
        [width for width in _WIDTHS if width <= meter.device.widest],
        make,
        x_label="vector components",
        is_log_x=True,
        quantity=Quantity(label="GFLOPS", convert=gflops_of, is_rate=True),
        least_s=2e-3,
    )


def _dots(meter: Meter) -> Answer:
    """Measure the peak rate of 8-bit dot products, in 1e9 operations a second.

    Each of a product's four multiplications counts as 2 operations.
    """
    unit = "GOPS"
    facts = meter.device.facts
    groups, size = full_grid(meter)
    candidates = [(name, step) for name, step in _DOTS.items() if name in (*facts.extensions, facts.api)] + [
        ("", _PLAIN)
    ]
    for extension, step in candidates:
        pragma = (
            f"#pragma OPENCL EXTENSION {extension} : enable\n" if extension.startswith(("cl_khr", "cl_arm")) else ""
        )
        source = pragma + _DOT_SOURCE.replace("STEP", step).replace("CHAINS", str(_CHAINS))
        try:
            kernel = meter.device.kernel(source, "dots")
        except BuildError:
            continue
        out = meter.device.buffer(64)
        run = lambda n, kernel=kernel, out=out: meter.device.launch(
            kernel, groups * size, size, np.int32(n), out, np.int32(0x01010101)
        )
        try:
            seconds, _ = meter.rate(run, least_s=2e-3)
        except KernelError as error:
            return declined(unit, error.message)
        operations = 2.0 * 4 * groups * size * _CHAINS * 8
        gops = np.array([operations / float(np.median(seconds)) * 1e-9])
        peak = throughput.peak_rate(
            np.array([4.0]),
            gops,
            unit,
            noise=max(float(np.std(seconds) / np.mean(seconds)), 0.002),
            repeats=seconds.size,
        )
        way = (
            f"dot products of four bytes by {extension}"
            if extension
            else "four bytes multiplied and added: no dot product instruction is on offer"
        )
        return peak.with_notes(way)
    return declined(unit, "no kernel of 8-bit products was built")


def _broadcast(meter: Meter) -> Answer:
    """Measure whether a scalar factor for a vector costs no more than a vector factor.

    The paper calls it autobroadcast (section 4.1).
    """
    speed, noise = _speed_of_scalar_factor(meter, is_factor_new=False)
    reason = f"multiply-adds of four components run at {speed:.2f} times the rate if the factor is one scalar"
    return throughput.is_above(speed, 0.95, noise=noise, reason=reason)


def _broadcast_pays(meter: Meter) -> Answer:
    """Measure whether a scalar factor is faster than a vector of its copies, made for each step."""
    speed, noise = _speed_of_scalar_factor(meter, is_factor_new=True)
    reason = f"multiply-adds by a scalar run at {speed:.2f} times the rate of multiply-adds by four copies of it"
    return throughput.is_above(speed, 1.05, noise=noise, reason=reason)


def _speed_of_scalar_factor(meter: Meter, *, is_factor_new: bool) -> tuple[float, float]:
    """Return the rate with a scalar factor over the rate with a vector, and the larger relative noise of the two."""
    groups, size = full_grid(meter)
    rates = {}
    for is_broadcast in (False, True):
        run, operations = multiply_add(
            meter,
            components=4,
            groups=groups,
            group_size=size,
            is_broadcast=is_broadcast,
            is_fused=False,
            is_factor_new=is_factor_new,
        )
        seconds, _ = meter.rate(run, least_s=2e-3)
        rates[is_broadcast] = (operations / float(np.median(seconds)), float(np.std(seconds) / np.mean(seconds)))
    return rates[True][0] / rates[False][0], max(rates[True][1], rates[False][1])


_LOAD_SOURCE = """
__kernel void load(int n, __global float *out, __global const V *src, uint mask, uint step) {
  uint at = get_global_id(0);
  V sum = (V)(0.0f);
  for (int k = 0; k < n; ++k) {
    #pragma unroll
    for (int u = 0; u < 8; ++u) { sum += src[at & mask]; at += step; }
  }
  if (TOTAL == 12345.0f) out[0] = 1;
}
"""
# Fits the first cache of nearly every device: the load is to be measured, not memory.
_RANGE_BYTES = 16384


@probe(
    "BufferVecWidth",
    "Best vector width of a load",
    "loads of 1 to 16 words from 16 KB; the narrowest whose time for a word is near the least",
)
def vector_width(meter: Meter) -> Findings:
    device = meter.device
    groups, size = full_grid(meter)
    source, out = device.buffer(np.zeros(_RANGE_BYTES // 4, np.float32)), device.buffer(64)

    def make(width: int) -> Run:
        total = " + ".join(f"sum{device.lane(i)}" for i in range(width))
        macros = {"V": "float", "TOTAL": "sum"} if width == 1 else {"V": f"float{width}", "TOTAL": total}
        kernel = device.kernel(defines(macros) + _LOAD_SOURCE, "load")
        mask = np.uint32(_RANGE_BYTES // 4 // width - 1)
        return lambda n: device.launch(kernel, groups * size, size, np.int32(n), out, source, mask, np.uint32(size))

    loads = Quantity(label="time of 8 loads by all work-items (ns)")
    widths = [width for width in (1, 2, 4, 8, 16) if width <= device.widest]
    curve = meter.sweep("vector loads", widths, make, x_label="32-bit words of a load", is_log_x=True, quantity=loads)
    answers = {
        "BufferVecSize": throughput.vector_width(
            curve.xs, curve.ys, noise=max(curve.spread, 0.002), repeats=curve.repeats
        )
    }
    return Findings(answers=answers, curves=(curve.marked(answers),))


_INTEGER_SOURCE = """
__kernel void chain(int n, __global int *out, int d) {
  int x[4];
  for (int i = 0; i < 4; ++i) x[i] = 0x7fffff0 + 97 * (int)get_local_id(0) + i;
  for (int k = 0; k < n; ++k)
    for (int u = 0; u < 4; ++u)
      for (int i = 0; i < 4; ++i) x[i] = STEP + 0x3fffff1;
  if (x[0] + x[1] + x[2] + x[3] == 12345) out[0] = 1;
}
"""
# The term keeps the numbers large and unknown. It costs all kernels the same.
_INTEGER_STEPS = {"Multiply": "x[i] * d", "Divide": "x[i] / d", "Remainder": "x[i] % d", "Shift": "(x[i] >> (d & 7))"}


@probe(
    "IntegerDivision",
    "Cost of integer division",
    "chains of 32-bit integer operations with an operand from run time, on all cores",
)
def division(meter: Meter) -> Findings:
    device = meter.device
    groups, size = full_grid(meter)
    out = device.buffer(64)
    answers: dict[str, Answer] = {}
    for i, (name, step) in enumerate(_INTEGER_STEPS.items()):
        kernel = device.kernel(_INTEGER_SOURCE.replace("STEP", step), "chain")
        run = lambda n, kernel=kernel: device.launch(kernel, groups * size, size, np.int32(n), out, np.int32(3))
        seconds, _ = meter.rate(run)
        answers[f"{name}Rate"] = rate(groups * size * 16 / seconds * 1e-9, "1e9 operations/s")
        meter.on_progress((i + 1) / len(_INTEGER_STEPS))
    reason = "rate of multiplications over rate of divisions"
    answers["DivideCost"] = ratio(answers["MultiplyRate"], answers["DivideRate"], "multiplications", 0.9, reason)
    return Findings(answers=answers)


@probe(
    aspect="Throttling",
    title="Sustained against burst speed",
    method="multiply-adds on all cores for 20 seconds (2 in a quick run); the last quarter's rate against the first's",
    is_repeated=False,
)
def throttling(meter: Meter) -> Findings:
    groups, size = full_grid(meter)
    run, operations = multiply_add(meter, groups=groups, group_size=size)
    iterations = meter.calibrate(run, least_s=0.02)
    span = 2.0 if meter.is_quick else 20.0
    start = time.monotonic()
    seconds: list[float] = []
    rates: list[float] = []
    while (now := time.monotonic() - start) < span or len(rates) < 12:
        rates.append(operations * iterations / run(iterations) * 1e-9)
        seconds.append(now)
        meter.on_progress(min(1.0, now / span))
    curve = Curve(
        name="sustained", x_label="time since the start (s)", y_label="GFLOPS", x=tuple(seconds), y=tuple(rates)
    )
    last, share = throughput.sustained(curve.xs, curve.ys)
    return Findings(answers={"SustainedGflops": last, "SustainedOverBurst": share}, curves=(curve,))
