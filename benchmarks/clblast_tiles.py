"""Checks that Romou's spaces of matrix products hold the tiles that won CLBlast's tuning on mobile GPUs.

    python benchmarks/clblast_tiles.py clblast_winners.json

FILE has {"rows": [{"gpu": .., "kernel": .., "precision": "Single", "config": {"MWG": 64, ..}}, ..]}: the database of
CLBlast as one list. Nothing is built or measured. docs/evidence/validation.md has what was seen.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.markup import escape

from romou.base.errors import RecordError
from romou.base.space import Space
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.costs.criteria import judge
from romou.compiler.operators.families.dense import Dense
from romou.compiler.single_operator import task_of
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import LANES
from romou.devices.hardware.files import device_called
from romou.devices.targets import Target
from romou.tools.report.table import table_of_numbers
from romou.tuner.pruning.prune import PrunedSpace
from romou.tuner.pruning.tasks import pruned_space

DTYPES = {"Single": "float32", "Half": "float16"}
# Device files for GPUs that have none: a GPU of the same generation.
STAND_INS = {
    "640": "adreno640",
    "644": "adreno642l",
    "710": "adreno730",
    "720": "adreno730",
    "732": "adreno730",
    "735": "adreno730",
    "825": "adreno830",
    "Mali-T": "mali_g71",
}
# Sizes that CLBlast tunes its kernels for.
_PRODUCT, _SMALL_PRODUCT, _VECTOR = (
    Dense(m=1024, k=1024, n=1024),
    Dense(m=256, k=256, n=256),
    Dense(m=1, k=2048, n=2048),
)


_PRUNED = "in the space, but excluded by"
# Configs with a tile that are judged.
_SAMPLE = 64


class Tile(NamedTuple):
    """The results of a work-item and the work-items of a group, along both sides of a product.

    staged: elements along the reduction that are staged in local memory at a time. 0: none. None: of one of both
        matrices, so Romou's staging, of both or none, does not count
    """

    work: Dense
    results: tuple[int, int]
    items: tuple[int, int]
    staged: int | None = 0


def tile_of(kernel: str, config: Mapping[str, int]) -> Tile | str:
    """Return the tile of a winner, or why Romou's template has nothing like it."""
    if kernel == "Xgemm":
        staged = config["KWG"] * config["SA"] if config["SA"] == config["SB"] else None
        return _gemm(_PRODUCT, config, ("MWG", "NWG"), ("MDIMC", "NDIMC"), staged)
    if kernel in ("XgemmDirect", "Xconvgemm"):
        return _gemm(_SMALL_PRODUCT, config, ("WGD", "WGD"), ("MDIMCD", "NDIMCD"), config["WGD"])
    if kernel == "Xgemv":
        return Tile(_VECTOR, (config["WPT1"], 1), (config["WGS1"], 1))
    if kernel == "XgemvFast":
        return Tile(_VECTOR, (config["WPT2"], 1), (config["WGS2"], 1))
    return {
        "XgemvFastRot": "stages a transposed matrix",
        "Xdot": "a dot product: a reduction",
        "Copy": "a copy",
        "Transpose": "a transposition",
    }.get(kernel, "an unknown kernel")


def _gemm(
    work: Dense, config: Mapping[str, int], tile: Sequence[str], items: Sequence[str], staged: int | None
) -> Tile:
    results = [config[whole] // config[part] for whole, part in zip(tile, items, strict=True)]
    return Tile(work, (results[0], results[1]), (config[items[0]], config[items[1]]), staged)


def knobs_of(tile: Tile) -> Iterator[dict[str, int]]:
    """Yield Romou's knobs of a tile, with either side of the product along the vectors."""
    sides = [(0, 1)] if tile.work.m == 1 else [(0, 1), (1, 0)]
    for vectors, pixels in sides:
        if tile.results[vectors] % LANES == 0:
            yield {
                "tile_o": tile.results[vectors] // LANES,
                "tile_w": tile.results[pixels],
                "wg_o": tile.items[vectors],
                "wg_w": tile.items[pixels],
                "split_k": 1,
                **({} if tile.staged is None else {"local": tile.staged // LANES}),
            }


def task_for(work: Dense, dtype: str) -> TunableTask:
    """Return the task of a product, whose config decides whether its matrices are in images."""
    return task_of(dataclasses.replace(work, dtype=dtype), has_epilogue=False).with_free_images()


@functools.cache
def spaces_of(work: Dense, dtype: str, device: str) -> tuple[Space, PrunedSpace]:
    """Return the space of a product on a device, and what the criteria leave of it."""
    target = Target(f"opencl -device={device}")
    task = task_for(work, dtype)
    return task.space(target), pruned_space(task, target)


def verdict(tile: Tile | str, dtype: str, device: str | None) -> str:
    """Return "kept" for a tile that some kept config of the space has, or the reason why there is none."""
    if isinstance(tile, str):
        return tile
    choices = list(knobs_of(tile))
    if not choices:
        return "a work-item has no four neighbouring results"
    if device is None:
        return "no device file"
    whole, kept = spaces_of(tile.work, dtype, device)
    possible = [where for where in choices if all(value in whole.knobs[name] for name, value in where.items())]
    if not possible:
        missing = [[name for name, value in where.items() if value not in whole.knobs[name]] for where in choices]
        fewest = min(missing, key=len)
        return f"no such choice of {', '.join(fewest)}"
    rng = np.random.default_rng(0)
    if any(kept.sample(rng, 1, where=where) for where in possible):
        return "kept"
    configs = [config for where in possible for config in whole.sample(rng, _SAMPLE, where=where)]
    if not configs:
        return "excluded by constraints"
    target = Target(f"opencl -device={device}")
    usage = task_for(tile.work, dtype).template.form(target.limits).usage(columns_of(configs))
    verdicts = judge(usage, target.spec, choices=kept.choices).items()
    alone = [name for name, each in verdicts if not np.any(each.keep)]
    return f"{_PRUNED} {', '.join(alone) or 'several'}"


def device_of(gpu: str) -> str | None:
    """Return the device file of a GPU, or of one of its generation. None if there is neither."""
    return device_called(gpu) or next((file for part, file in STAND_INS.items() if part in gpu), None)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(file: Path) -> None:
    """Print a table of GPUs and a table of reasons."""
    try:
        rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["rows"]
        winners = [(row["gpu"], DTYPES[row["precision"]], tile_of(row["kernel"], row["config"])) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{file}: no list of CLBlast's configs: {type(error).__name__}: {error}") from error
    out = Console(width=160)
    by_gpu: dict[str, Counter[str]] = {}
    for gpu, dtype, tile in winners:
        by_gpu.setdefault(gpu, Counter())[verdict(tile, dtype, device_of(gpu))] += 1
    products = Counter(gpu for gpu, _, tile in winners if not isinstance(tile, str))
    table = table_of_numbers("GPU", ("winners", "tiles of products", "in the space", "kept"), "judged as")
    for gpu, verdicts in sorted(by_gpu.items()):
        inside = sum(count for name, count in verdicts.items() if name == "kept" or name.startswith(_PRUNED))
        counts = verdicts.total(), products[gpu], inside, verdicts["kept"]
        table.add_row(escape(gpu), *map(str, counts), device_of(gpu) or "-")
    out.print(table)
    table = table_of_numbers("verdict", ("winners",), title="Winners by verdict")
    for name, count in sum(by_gpu.values(), Counter()).most_common():
        table.add_row(name, str(count))
    out.print(table)


if __name__ == "__main__":
    main()
