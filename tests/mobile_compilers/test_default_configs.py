"""Default configs of layers with larger tiles that would spill under Mesa's compilers, and of similar layers that may
have large tiles.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from romou.compiler.compilation import Compilation, import_model
from romou.compiler.operators.workload import Conv3d
from romou.devices.mobile_compilers import compile_all, compiler_for
from romou.devices.targets import Target
from romou.tools.inspection.kernels import inspect_function
from support.kernels.operators import conv, matmul, task_of
from support.models.attention_parts import grouped_heads


def volume(kernel: tuple[int, int, int], dtype: str = "float32", **given: tuple[int, ...]) -> Conv3d:
    return Conv3d(in_channels=64, in_dhw=(8, 28, 28), out_channels=64, kernel=kernel, dtype=dtype, **given)  # type: ignore[arg-type]


SAME, HALF = {"padding": (1, 1, 1, 1)}, {"padding": (1, 1, 1, 1), "stride": (2, 2)}
# (Device, layer, the texels of channels and the pixels of its tile.)
LAYERS = [
    # All of a short sum would be loaded ahead. Where that does not fit, the loop stays.
    ("adreno640", conv(12, (56, 56), 64, (1, 1)), None),
    ("adreno640", conv(16, (112, 112), 96, (1, 1)), None),
    ("adreno640", conv(16, (112, 112), 96, (1, 1), "float16"), None),
    ("adreno640", conv(8, (56, 56), 64, (1, 1)), None),
    # So is a row of seven columns of three channels.
    ("adreno640", conv(3, (224, 224), 96, (7, 7), stride=(2, 2)), None),
    # Tiles of four pixels do not divide a row of 14 with padding; they do one of 28, and one without padding may end
    # within them.
    ("mali_g76", conv(128, (28, 28), 256, (3, 3), **HALF), (2, 2)),
    ("mali_g76", conv(128, (56, 56), 256, (3, 3), **HALF), (1, 4)),
    ("mali_g76", conv(128, (35, 35), 256, (3, 3), stride=(2, 2)), (1, 4)),
    # A window of three channels is written out, or not.
    ("mali_g76", conv(3, (224, 224), 32, (3, 3), **HALF), (1, 2)),
    ("mali_g76", conv(3, (224, 224), 64, (7, 7), padding=(3, 3, 3, 3), stride=(2, 2)), (1, 4)),
    # Blocks of sums in fp16 are written out.
    ("mali_g76", conv(128, (17, 17), 128, (1, 7), "float16", padding=(0, 3, 0, 3)), (1, 4)),
    ("mali_g76", conv(128, (17, 17), 128, (7, 1), "float16", padding=(3, 0, 3, 0)), (1, 4)),
    # The same holds for a short window, of rows and of volumes: the loads ahead for several of them do not fit.
    ("mali_g76", conv(384, (1, 3000), 384, (1, 3), "float16", padding=(0, 1, 0, 1), stride=(1, 2)), None),
    ("mali_g76", conv(64, (56, 56), 64, (2, 2), "float16", stride=(2, 2)), None),
    ("mali_g76", volume((3, 3, 3), "float16", padding=(1, 1, 1, 1, 1, 1)), None),
    ("mali_g76", volume((3, 1, 1), "float16", padding=(1, 0, 0, 1, 0, 0)), None),
    ("mali_g76", volume((3, 3, 3), padding=(1, 1, 1, 1, 1, 1)), None),
    # Windows that share little, a short loop that a split sum leaves, and groups of channels.
    ("adreno640", conv(672, (14, 14), 672, (5, 5), padding=(1, 1, 2, 2), stride=(2, 2), groups=672), None),
    ("adreno690", conv(128, (56, 56), 128, (3, 3), padding=(0, 0, 1, 1), stride=(2, 2)), None),
    ("adreno690", conv(160, (7, 7), 960, (1, 1)), None),
    ("adreno690", conv(32, (35, 35), 48, (1, 3), padding=(0, 1, 0, 1)), None),
    ("adreno690", conv(64, (56, 56), 64, (3, 3), padding=(0, 0, 1, 1), stride=(2, 2), groups=4), None),
    ("mali_g76", conv(64, (56, 56), 64, (3, 3), padding=(0, 0, 1, 1), stride=(2, 2), groups=4), (1, 2)),
    ("adreno640", volume((3, 3, 3), padding=(1, 1, 1, 1, 1, 1)), None),
    # Columns that are no whole texels are loaded as single numbers: 160 loads of a short sum.
    ("adreno640", matmul((3,), 49, 32, 49), None),
    ("adreno640", matmul((3,), 77, 64, 77, "float16"), None),
    ("adreno690", matmul((3,), 61, 80, 61), None),
    ("mali_g76", matmul((3,), 77, 64, 77), None),
    ("mali_g710", matmul((3,), 65, 64, 65), None),
    # Loops that stay: groups of eight channels, few channels, and a sum in pieces of 25 texels.
    *(
        (device, work, None)
        for device in ("adreno690", "mali_g76", "mali_g710")
        for work in (
            conv(56, (56, 56), 56, (3, 3), groups=7, **SAME),
            conv(48, (112, 112), 48, (3, 3), groups=6, **HALF),
            conv(10, (30, 30), 20, (3, 3), **SAME),
            conv(6, (28, 28), 16, (5, 5)),
            conv(200, (14, 14), 80, (1, 1)),
            conv(128, (1, 100), 128, (1, 3), padding=(0, 1, 0, 1)),
            # Between Winograd's transforms.
            conv(64, (52, 52), 64, (3, 3), **SAME),
        )
    ),
    ("mali_g76", conv(56, (35, 35), 56, (9, 9), "float16", padding=(4, 4, 4, 4), groups=56), None),
    # Odd rows end inside a tile of four, and are read in vectors.
    ("adreno640", matmul((3,), 197, 61, 197), None),
    ("mali_g76", matmul((3,), 197, 61, 197), (1, 3)),
    ("mali_g76", matmul((3,), 77, 64, 77, is_transposed=True), (1, 3)),
    ("mali_g76", matmul((3,), 257, 64, 257, is_transposed=True), (1, 3)),
    ("mali_g76", matmul((3,), 197, 80, 197, "float16", is_transposed=True), (1, 3)),
    ("mali_g710", matmul((3,), 197, 197, 61), (1, 3)),
    ("mali_g710", matmul((3,), 145, 32, 145, is_transposed=True), (1, 2)),
    ("mali_g710", matmul((3,), 197, 96, 197, "float16"), (1, 3)),
    # A single pixel. An unrolled loop loads ahead for all steps of its piece.
    ("adreno640", conv(88, (1, 1), 24, (1, 1)), None),
    ("adreno640", conv(96, (1, 1), 24, (1, 1), "float16"), None),
    ("adreno640", conv(120, (1, 1), 480, (1, 1)), None),
    ("adreno640", conv(120, (1, 1), 480, (1, 1), "float16"), None),
    ("adreno690", conv(1152, (1, 1), 48, (1, 1)), None),
    ("adreno690", conv(72, (1, 1), 288, (1, 1)), None),
    # Each of the stores of an odd number of tiles was compared.
    ("mali_g76", conv(48, (27, 27), 192, (3, 3), "float16", **SAME), None),
]


@pytest.mark.parametrize("device", ["adreno640", "adreno740"])
def test_one_kernel_of_attention_does_not_spill(device: str, compilers: Path) -> None:
    """It did, with 90 to 279 accesses, when both products were unrolled and local memory was read by `vload4`."""
    target, sources = Target(f"opencl -device={device}"), []
    for model in (grouped_heads(rows=64, heads=8, depth=32), grouped_heads(rows=80, heads=4, depth=64)):
        tasks = Compilation.of(import_model(model, None), target).lowered().joined_where(lambda key: True).tasks
        (task,) = (task for task in tasks if task.family == "attention")
        config = task.default_config(target)
        (kernel,) = inspect_function(task.schedule(config, target)["main"], target, config=config)
        sources.append(kernel.source)
    for answer in compile_all(sources, compiler_for(device), folder=compilers):
        assert isinstance(answer, list), answer
        assert [one.spills for one in answer] == [0]


@pytest.mark.parametrize("device", sorted({device for device, *_ in LAYERS}))
def test_they_do_not_spill(device: str, compilers: Path) -> None:
    target = Target(f"opencl -device={device}")
    names, sources = [], []
    for name, work, tile in LAYERS:
        if name == device:
            task = task_of(work).with_free_images()
            config = task.default_config(target)
            assert tile is None or (config["tile_o"], config["tile_w"]) == tile, f"{work}: {config}"
            made = [
                kernel.source
                for kernel in inspect_function(task.schedule(config, target)["main"], target, config=config)
            ]
            names += [str(work)] * len(made)
            sources += made
    answers = compile_all(sources, compiler_for(device), folder=compilers)
    for name, answer in zip(names, answers, strict=True):
        assert isinstance(answer, list), f"{name}: {answer}"
        assert [one.spills for one in answer] == [0] * len(answer), name
