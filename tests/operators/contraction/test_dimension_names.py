"""A kernel's text names the dimension of each id, loop and address, and the names are right."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import numpy as np
import pytest

from romou.compiler.assembly.kernel import build_task
from romou.compiler.single_operator import conv, task_of
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from support.kernels.operators import matmul

BACKENDS = ["opencl -device=adreno640", "cuda -device=nvidia_h200", "vulkan -device=adreno640"]
WORKS = {
    "1x1": conv(20, (5, 7), 12, (1, 1)),
    "3x3": conv(8, (7, 9), 20, (3, 3), padding=(1, 1, 1, 1), batch=2),
    "depthwise": conv(12, (9, 9), 12, (3, 3), padding=(1, 1, 1, 1), groups=12),
    "matmul": matmul((3,), 7, 16, 24),
}
_LOOP = re.compile(r"for \(int (\w+)")
_IDS = ("group_x", "group_y", "local_x", "local_y", "local_z")


def text_of(task: TunableTask, target: Target) -> str:
    (text,) = target.backend.split_kernels(
        build_task(task, task.default_config(target), target).imports[0].inspect_source()
    ).values()
    return text


@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("name", ["1x1", "3x3"])
def test_text_names_dimensions(target: str, name: str) -> None:
    text = text_of(task_of(WORKS[name]), Target(target))
    lines = [line.removeprefix("// ") for line in text.splitlines() if line.startswith("// ")]
    assert any(line.startswith("oc = ") and "group_y" in line for line in lines)
    assert any(re.match(r"(n \* \d+ \+ )?y( \* 7 \+ x)? = ", line) or line.startswith("(n *") for line in lines)
    assert any(re.search(r"\bx\)? = |\+ x = ", line) for line in lines)
    assert any(re.match(r"sum over ic \d+, ky \d, kx \d, ilane \d", line) for line in lines)
    assert any("[ic " in line and "[y " in line and "[x " in line for line in lines)
    # Each loop that is left is a dimension of the sum, or a copy into local memory.
    loops = [re.sub(r"_(start|step)?\d*$", "", loop) for loop in _LOOP.findall(text)]
    assert set(loops) <= {"ic", "ky", "kx", "ic_ky_kx", "patch_texel", "kernel_texel", "ilane"}, loops
    # A piece of one texel of channels has no address that advances with it.
    if name == "3x3" and "ic" in loops and "ic < 1;" not in text:
        assert "at_ic" in text or "ADVANCE" in text or "+=" in text


def values(text: str, ids: dict[str, int]) -> list[int]:
    """Return the values of an index for one work-item: `group_y * 4 + local_y`, with `(0 to 3)` as all of these."""
    owned = [int(last) + 1 for last in re.findall(r"\(0 to (\d+)\)", text)]
    formula = re.sub(r"\(0 to \d+\)", "own", text).replace("/", "//")
    return [eval(formula, {**ids, "own": own}) for own in range(owned[0] if owned else 1)]


@pytest.mark.parametrize("name", WORKS)
def test_names_cover_the_output(name: str) -> None:
    """Each element of the output belongs to exactly one work-item, as the lines say."""
    target = Target("opencl -device=adreno640")
    task = task_of(WORKS[name])
    checked = 0
    has_algorithms = "algorithm" in task.space(target).knobs
    where = {"split_k": 1} | ({"algorithm": "direct"} if has_algorithms else {})
    for config in task.space(target).sample(np.random.default_rng(5), 6, where=where):
        template = task.template
        lines = template.algorithms["direct"].dimensions(config).splitlines()
        indices = [line.split(" = ")[1] for line in lines[: [line[:3] for line in lines].index("sum")]]
        o, h, w = template.contraction(flat=config.get("pixels", "flat") == "flat").extents
        extents = (o, h, w) if len(indices) == 3 else (o, w)
        tile_o, tile_h, tile_w = (config[f"tile_{axis}"] for axis in "ohw")
        blocks = -(-w // (tile_w * config["wg_w"]))
        grid = blocks * -(-h // (tile_h * config["wg_h"])), -(-o // (tile_o * config["wg_o"]))
        owners: Counter[tuple[int, ...]] = Counter()
        for numbers in itertools.product(*map(range, (*grid, config["wg_w"], config["wg_o"], config["wg_h"]))):
            ids = dict(zip(_IDS, numbers, strict=True))
            owners.update(itertools.product(*(values(index, ids) for index in indices)))
        inside = {at: count for at, count in owners.items() if all(map(int.__lt__, at, extents))}
        assert set(inside.values()) == {1}, (config, lines)
        assert len(inside) == len(list(itertools.product(*map(range, extents)))), (config, lines)
        checked += 1
    assert checked == 6
