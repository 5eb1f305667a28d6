"""Products with quantized weights on tensor cores: their numbers, run as CUDA on a GPU or else as the kernel's text on
the CPU, also in NVIDIA's OpenCL C, and the targets and shapes that offer them.
"""

from __future__ import annotations

import numpy as np
import pytest

from romou.base.space import Config
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.families import quantized_product
from romou.compiler.operators.families.quantized_product import QuantizedTemplate
from romou.compiler.operators.kernels.quantized.tensor_core_defaults import data_choices, tensor_core_config
from romou.compiler.task import TunableTask
from romou.devices.backends.cuda.overlapped_launches import with_waits
from romou.devices.backends.opencl import backend as opencl
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from romou.tuner.measure.verify import poison
from support.kernels.cuda_on_cpu import run_on_cpu
from support.kernels.operators import assert_agrees, error_of, has_device
from support.models.quantized import QuantizedCase, quantized_task
from support.suite.exhaustive import exhaustive

# Architecture with wgmma.
TARGET = Target("cuda -device=nvidia_h200")
CASES = {
    "one row": QuantizedCase(m=1, k=264, n=40, dtype="float16"),
    "odd rows": QuantizedCase(m=19, k=200, n=72, block=64, dtype="float16"),
    "zero points": QuantizedCase(m=9, k=520, n=48, zero="uint8", dtype="float16"),
    "2 bits": QuantizedCase(m=33, k=136, n=144, bits=2, block=16, zero="uint8", dtype="float16"),
    "8 bits": QuantizedCase(m=17, k=328, n=40, bits=8, block=128, dtype="float16"),
}
LIMIT = 1e-3


def configs(task: TunableTask, choice: str, count: int) -> list[Config]:
    space = task.space(TARGET).narrowed({"tensor_cores": (choice,)})
    return list(space.sample(np.random.default_rng(1), count))


def check(case: QuantizedCase, config: Config, *, has_epilogue: bool = False) -> None:
    """Compare a config with the definition, on fresh numbers."""
    task, drawn = quantized_task(case, has_epilogue=has_epilogue), case.draw(7)
    expected, extra = drawn.result, list[np.ndarray]()
    if has_epilogue:
        rng = np.random.default_rng(3)
        extra = [rng.standard_normal(shape).astype(case.dtype) for shape in ((case.n,), (case.m, case.n))]
        expected = np.maximum(expected + extra[0].astype(np.float64), 0) * extra[1].astype(np.float64)
    arrays = [drawn.data, *case.matrix(drawn).arrays, *extra, poison((case.m, case.n), case.dtype)]
    if has_device(TARGET):
        assert_agrees(Target("cuda"), task, config, arrays, expected, LIMIT)
    else:
        error = error_of(run_on_cpu(task, config, arrays, TARGET), expected)
        assert error < LIMIT, f"{config}: {error:.2g}"


@pytest.mark.parametrize("choice", ["mma", "wgmma"])
@pytest.mark.parametrize(
    "name", [name if name in ("odd rows", "2 bits") else pytest.param(name, marks=exhaustive) for name in CASES]
)
def test_random_configs(name: str, choice: str) -> None:
    case = CASES[name]
    if choice == "wgmma" and case.m == 1:
        pytest.skip("64 rows of activations at least")
    for config in configs(quantized_task(case), choice, 2):
        check(case, config)


@pytest.mark.parametrize("name", [n if n == "2 bits" else pytest.param(n, marks=exhaustive) for n in CASES])
def test_text_in_opencl(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's OpenCL takes PTX, too."""
    monkeypatch.setattr(opencl, "PTX_PRODUCTS_FROM", 0)
    case, target = CASES[name], Target("opencl")
    task, drawn = quantized_task(case), case.draw(7)
    arrays = [drawn.data, *case.matrix(drawn).arrays, poison((case.m, case.n), case.dtype)]
    space = task.space(target).narrowed({"tensor_cores": ("mma",)})
    # On a CPU, which computes for the GPU here, vectors of rows come first.
    default = tensor_core_config(task.template.workload, task.space(target), target.limits)
    for config in [default, *space.sample(np.random.default_rng(2), 1)]:
        assert config is not None
        assert config["tensor_cores"] == "mma"
        assert error_of(run_on_cpu(task, config, arrays, target), drawn.result) < LIMIT, config


@pytest.mark.parametrize("name", [n if n == "zero points" else pytest.param(n, marks=exhaustive) for n in CASES])
def test_default_configs(name: str) -> None:
    config = quantized_task(CASES[name]).default_config(TARGET)
    assert config["tensor_cores"] == ("wgmma" if CASES[name].m > 32 else "mma")
    check(CASES[name], config)


@pytest.mark.parametrize("choice", ["mma", "wgmma"])
def test_a_width_that_is_no_power_of_two(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """84 rows of activations are one tile of 96 columns, or two of 64. So a single core takes the former."""
    monkeypatch.setattr(quantized_product, "data_choices", lambda work, _cores: data_choices(work, 1))
    case = QuantizedCase(m=84, k=136, n=136, block=64, dtype="float16")
    space = quantized_task(case).space(TARGET)
    narrow = space.narrowed({"tensor_cores": (choice,), "item_data": (24,)})
    assert narrow is not None
    (config,) = narrow.sample(np.random.default_rng(1), 1)
    check(case, config)


@pytest.mark.parametrize(
    ("m", "n", "cores", "others"),
    [(512, 11008, 132, [44]), (512, 4096, 132, []), (84, 4096, 1, [24, 28]), (64, 11008, 132, [])],
)
def test_which_widths_fill_the_device(m: int, n: int, cores: int, others: list[int]) -> None:
    """512 x 11008 is 258 tiles of 128 x 176, which 132 cores finish in two rounds. Tiles of 128 x 128 take three."""
    template = quantized_task(QuantizedCase(m=m, k=64, n=n, dtype="float16")).template
    assert isinstance(template, QuantizedTemplate)
    choices = data_choices(template.workload, cores)
    assert [width for width in choices if width & (width - 1)] == others


@pytest.mark.parametrize(
    ("m", "n", "tile"),
    [(512, 11008, (128, 176)), (512, 4096, (128, 128)), (512, 8192, (128, 128)), (84, 11008, (64, 64))],
)
def test_default_tiles_fill_the_device(m: int, n: int, tile: tuple[int, int]) -> None:
    """The fastest of 11 configs each on an NVIDIA H100, which has 132 cores, as the device of the target."""
    template = quantized_task(QuantizedCase(m=m, k=64, n=n, dtype="float16")).template
    assert isinstance(template, QuantizedTemplate)
    tiles = template.tiles(template.default_config(TARGET.limits))
    assert (int(tiles.rows), int(tiles.columns)) == tile


@pytest.mark.parametrize("choice", ["mma", "wgmma"])
def test_an_epilogue_is_part_of_the_kernel(choice: str) -> None:
    case = CASES["odd rows"]
    (config,) = configs(quantized_task(case, has_epilogue=True), choice, 1)
    check(case, config, has_epilogue=True)


@pytest.mark.parametrize("choice", ["mma", "wgmma"])
def test_codes_come_out_exactly(choice: str) -> None:
    """Small integers and scales of one: no code and no zero point is nearly right."""
    for bits in (2, 4, 8):
        case = QuantizedCase(m=16, k=256, n=48, bits=bits, zero="uint8", dtype="float16")
        task, drawn = quantized_task(case), case.draw(bits)
        data = np.random.default_rng(bits).integers(-1, 2, drawn.data.shape).astype(np.float16)
        whole = type(drawn)(**{**vars(drawn), "data": data, "scales": np.full_like(drawn.scales, 0.0625)})
        (config,) = configs(task, choice, 1)
        arrays = [data, *case.matrix(whole).arrays, poison((case.m, case.n), case.dtype)]
        if has_device(TARGET):
            assert_agrees(Target("cuda"), task, config, arrays, whole.result.astype(np.float16), 1e-12)
        else:
            output = run_on_cpu(task, config, arrays, TARGET)
            assert np.array_equal(output, whole.result.astype(np.float16).astype(np.float64)), config


@pytest.mark.parametrize(
    ("case", "target", "choices"),
    [
        (CASES["odd rows"], "cuda -arch=sm_90a", ["none", "mma", "wgmma"]),
        (CASES["odd rows"], "cuda -arch=sm_80", ["none", "mma"]),
        (CASES["odd rows"], "cuda -arch=sm_75", []),
        (CASES["odd rows"], "opencl -device=adreno640", []),
        (QuantizedCase(m=19, k=204, n=72, dtype="float16"), "cuda -arch=sm_90a", ["none"]),
        (QuantizedCase(m=19, k=200, n=70, dtype="float16"), "cuda -arch=sm_90a", ["none"]),
        (QuantizedCase(m=19, k=200, n=72, zero="float", dtype="float16"), "cuda -arch=sm_90a", ["none"]),
        (QuantizedCase(m=19, k=200, n=72), "cuda -arch=sm_90a", ["none"]),
    ],
    ids=str,
)
def test_which_spaces_have_tensor_cores(case: QuantizedCase, target: str, choices: list[str]) -> None:
    assert list(quantized_task(case).space(Target(target)).knobs.get("tensor_cores", ())) == choices


def test_the_weight_is_read_before_the_kernel_waits() -> None:
    """Only copies of words and scales, which are constants, are in front of the wait."""
    task = quantized_task(CASES["odd rows"])
    (kernel,) = inspect_function(task.schedule(task.default_config(TARGET), TARGET)["main"], TARGET)
    text = with_waits(kernel.source[kernel.source.index('extern "C" __global__') :])
    assert text.count("wait_for_kernels_before();") == 1
    before, behind = text.split("wait_for_kernels_before();")
    data = f"{task.func.params[0].name}_ptr"
    sources = {line.split(",")[3].strip() for line in before.splitlines() if "copy_unit_async(" in line}
    assert sources
    assert data not in sources
    assert data in behind


def test_formulas() -> None:
    """Four work-items share rows of the weight, so a group reads each code of its rows once."""
    case = QuantizedCase(m=64, k=4096, n=4096, dtype="float16")
    template = quantized_task(case).template
    assert isinstance(template, QuantizedTemplate)
    config = template.default_config(TARGET.limits)
    tiles = template.tiles(config)
    usage = template.form(TARGET.limits).usage(columns_of([config]))
    codes = tiles.rows * tiles.staged
    per_code = template.workload.weight_bytes / (case.k * case.n)
    assert usage.buffer_bytes[0] == pytest.approx(codes * per_code + tiles.columns * tiles.staged * 2)
