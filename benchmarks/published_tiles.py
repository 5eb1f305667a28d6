"""Compares Romou's spaces, estimate and defaults with tiles of products that others tuned for GPUs of phones.

    python benchmarks/published_tiles.py                             tiles of Arm and Alibaba
    python benchmarks/published_tiles.py --only Mali-G78             of one GPU
    python benchmarks/published_tiles.py clblast_winners.json        the database of CLBlast as one list

benchmarks/data/published_tiles.csv has the tiles of Arm and Alibaba. CLBlast's file has {"rows": [{"gpu": ..,
"kernel": .., "precision": "Single", "config": {"MWG": 64, ..}}, ..]}. Nothing is built or measured.
docs/evidence/validation.md has what was seen.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
import numpy as np
from rich.console import Console
from rich.markup import escape

from romou.base.errors import RecordError
from romou.base.knob import Choice
from romou.base.space import Config, Space
from romou.compiler.operators.analysis.form import columns_of
from romou.compiler.operators.costs.criteria import judge
from romou.compiler.operators.costs.estimate import estimable, estimate_seconds
from romou.compiler.operators.families.batch_matmul import matmul
from romou.compiler.operators.families.dense import Dense, Product
from romou.compiler.single_operator import task_of
from romou.compiler.task import TunableTask
from romou.compiler.tir.primitives import LANES, MemoryKind
from romou.devices.hardware.files import device_called
from romou.devices.targets import Target
from romou.tools.report.table import table_of_numbers
from romou.tuner.pruning.prune import PrunedSpace
from romou.tuner.pruning.tasks import pruned_space

DATA = Path(__file__).parent / "data" / "published_tiles.csv"
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
# The knobs over which the estimate ranks tiles.
_FREE = frozenset({"tile_o", "tile_w", "wg_o", "wg_w", "weight"})
# Configs with a tile that are judged.
_SAMPLE = 64


class Tile(NamedTuple):
    """The results of a work-item along columns and rows of a product, and how its group computes them.

    items: the work-items of a group along the same sides. None: not published
    staged: elements along the reduction that are staged in local memory at a time. 0: none. None: of one of both
        matrices, so Romou's staging, of both or none, does not count
    memory: where the right matrix lies, a choice of the knob `weight`. None: not published
    """

    work: Product
    results: tuple[int, int]
    items: tuple[int, int] | None
    staged: int | None = 0
    memory: str | None = None


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


def knobs_of(tile: Tile) -> Iterator[dict[str, Choice]]:
    """Yield Romou's knobs of a tile. The sides of a square product may change places."""
    sides = [(0, 1), (1, 0)] if tile.work.m == tile.work.n else [(0, 1)]
    for vectors, pixels in sides:
        if tile.results[vectors] % LANES == 0:
            yield {
                "tile_o": tile.results[vectors] // LANES,
                "tile_w": tile.results[pixels],
                **({} if tile.items is None else {"wg_o": tile.items[vectors], "wg_w": tile.items[pixels]}),
                "split_k": 1,
                **({} if tile.staged is None else {"local": tile.staged // LANES}),
                **({} if tile.memory is None else {"weight": tile.memory}),
            }


@functools.cache
def task_for(work: Product, dtype: str) -> TunableTask:
    """Return the task of a product, whose config decides whether its matrices are in images."""
    return task_of(dataclasses.replace(work, dtype=dtype), has_epilogue=False).with_free_images()


@functools.cache
def spaces_of(work: Product, dtype: str, device: str) -> tuple[Space, PrunedSpace]:
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


class Row(NamedTuple):
    """A published tile.

    group: the row of the table that counts it
    choice: "best", "best without an image", or "rule", which says nothing of other memories
    """

    gpu: str
    group: str
    dtype: str
    tile: Tile | str
    choice: str


def published(only: Sequence[str] = ()) -> list[Row]:
    """Return the tiles of DATA of some GPUs, of all if none is given."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return [row_of(row) for row in csv.DictReader(file) if row["gpu"] in (only or [row["gpu"]])]


def row_of(row: Mapping[str, str]) -> Row:
    """Return a line of DATA. Products with several matrices on the right are products of two tensors."""
    m, n, k, batch, m0, n0 = (int(row[name]) for name in ("m", "n", "k", "batch", "m0", "n0"))
    is_shared = batch == 1 and row["kind"] == "constant weight"
    kind = "one row" if m == 1 else "constant weight" if is_shared else "two tensors"
    items = (int(row["group_n"]), int(row["group_m"])) if row["group_n"] else None
    memory = {"": None, "0": MemoryKind.BUFFER.value, "1": MemoryKind.IMAGE.value}[row["image"]]
    group = f"{row['source']}, {row['gpu']}, {row['dtype']}, {kind}"
    if row["dtype"] == "uint8":
        return Row(row["gpu"], group, row["dtype"], "integers: a template with other knobs", row["choice"])
    swapped: dict[str, Any] = {"lhs_axes": (0, 2, 1)} if row["transposed"] in ("lhs", "both") else {}
    is_transposed = row["transposed"] in ("rhs", "both")
    work = Dense(m=m, k=k, n=n) if is_shared else matmul((batch,), m, k, n, is_transposed=is_transposed, **swapped)
    return Row(row["gpu"], group, row["dtype"], Tile(work, (n0, m0), items, memory=memory), row["choice"])


@functools.cache
def seconds_of_tiles(work: Product, dtype: str, device: str) -> dict[tuple[int, int], float]:
    """Return (tile_o, tile_w) -> least estimated seconds over groups and memories. No sum is split."""
    target, task = Target(f"opencl -device={device}"), task_for(work, dtype)
    default = {**task.default_config(target), "split_k": 1}
    space = task.space(target).narrowed({name: (value,) for name, value in default.items() if name not in _FREE})
    assert space is not None, "each default is a choice"
    configs = space.sample(np.random.default_rng(0), space.size)
    usage = task.template.form(target.limits).usage(columns_of(configs))
    seconds = estimate_seconds(usage, estimable(target).spec)
    assert seconds is not None, "each GPU of DATA has a measured neighbour"
    least: dict[tuple[int, int], float] = {}
    for config, config_s in zip(configs, seconds, strict=True):
        tile = int(config["tile_o"]), int(config["tile_w"])
        least[tile] = min(least.get(tile, np.inf), float(config_s))
    return least


def rank(row: Row, device: str) -> tuple[float, float] | None:
    """Return the share of tiles that the estimate ranks ahead of a row's, and the row's time over the least."""
    if isinstance(row.tile, str):
        return None
    seconds = seconds_of_tiles(row.tile.work, row.dtype, device)
    own = (seconds.get((int(knobs["tile_o"]), int(knobs["tile_w"]))) for knobs in knobs_of(row.tile))
    own_s = min((each for each in own if each is not None), default=None)
    if own_s is None:
        return None
    return sum(other < own_s for other in seconds.values()) / len(seconds), own_s / min(seconds.values())


def default_of(row: Row, device: str) -> Config | None:
    """Return the default config of a row's product. None if Romou's template has nothing like it."""
    if isinstance(row.tile, str):
        return None
    return task_for(row.tile.work, row.dtype).default_config(Target(f"opencl -device={device}"))


def has_tile(config: Config | None, row: Row) -> bool:
    """Return whether a config has a row's tile."""
    if config is None or isinstance(row.tile, str):
        return False
    return any(all(config[side] == knobs[side] for side in ("tile_o", "tile_w")) for knobs in knobs_of(row.tile))


def memories(row: Row, config: Config | None) -> tuple[str, str] | None:
    """Return where a row and a config have the right matrix. None for a row that does not choose between memories."""
    if config is None or isinstance(row.tile, str) or row.tile.memory is None or row.choice == "best without an image":
        return None
    return row.tile.memory, str(config["weight"])


def print_rows(rows: Sequence[Row], out: Console) -> None:
    """Print tables of tiles, of memories and of verdicts. The first two have a line for each group of `rows`."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    counts = ("tiles", "four neighbours", "in the space", "kept", "faster tiles", "time over the least", "by default")
    tiles = table_of_numbers("source, GPU, type, product", counts, title="Published tiles by the estimate")
    choices = ("products", "in images", "by default", "agree")
    places = table_of_numbers("source, GPU, type, product", choices, title="Memory of the right matrix")
    total: Counter[str] = Counter()
    for group, own in groups.items():
        device = device_of(own[0].gpu)
        assert device is not None, "each GPU of DATA has a file"
        verdicts = Counter(verdict(row.tile, row.dtype, device) for row in own)
        total += verdicts
        defaults = [(row, default_of(row, device)) for row in own]
        ranked = [found for row in own if (found := rank(row, device)) is not None]
        tiles.add_row(
            group,
            str(len(own)),
            str(sum(not isinstance(row.tile, str) and any(knobs_of(row.tile)) for row in own)),
            str(_inside(verdicts)),
            str(verdicts["kept"]),
            *([f"{median(column):.2f}" for column in zip(*ranked, strict=True)] or ["-", "-"]),
            str(sum(has_tile(config, row) for row, config in defaults)),
        )
        pairs = [pair for row, config in defaults if (pair := memories(row, config)) is not None]
        if pairs:
            images = [sum(memory == MemoryKind.IMAGE for memory in side) for side in zip(*pairs, strict=True)]
            places.add_row(group, *map(str, (len(pairs), *images, sum(theirs == ours for theirs, ours in pairs))))
    for table in (tiles, places):
        out.print(table)
    print_verdicts(total, out)


def _inside(verdicts: Mapping[str, int]) -> int:
    return sum(count for name, count in verdicts.items() if name == "kept" or name.startswith(_PRUNED))


def print_verdicts(verdicts: Counter[str], out: Console) -> None:
    """Print how many tiles have each verdict."""
    table = table_of_numbers("verdict", ("winners",), title="Winners by verdict")
    for name, count in verdicts.most_common():
        table.add_row(name, str(count))
    out.print(table)


def clblast(file: Path) -> list[tuple[str, str, Tile | str]]:
    """Return (GPU, type, tile) of CLBlast's database."""
    try:
        rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["rows"]
        return [(row["gpu"], DTYPES[row["precision"]], tile_of(row["kernel"], row["config"])) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{file}: no list of CLBlast's configs: {type(error).__name__}: {error}") from error


@click.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--only", multiple=True, help="Only this GPU of the bundled tiles. [default: all]")
def main(file: Path | None, only: Sequence[str]) -> None:
    """Print a table of GPUs and a table of reasons. FILE: the database of CLBlast, instead of the bundled tiles."""
    out = Console(width=160)
    if file is None:
        print_rows(published(only), out)
        return
    winners = clblast(file)
    by_gpu: dict[str, Counter[str]] = {}
    for gpu, dtype, tile in winners:
        by_gpu.setdefault(gpu, Counter())[verdict(tile, dtype, device_of(gpu))] += 1
    products = Counter(gpu for gpu, _, tile in winners if not isinstance(tile, str))
    table = table_of_numbers("GPU", ("winners", "tiles of products", "in the space", "kept"), "judged as")
    for gpu, verdicts in sorted(by_gpu.items()):
        counts = verdicts.total(), products[gpu], _inside(verdicts), verdicts["kept"]
        table.add_row(escape(gpu), *map(str, counts), device_of(gpu) or "-")
    out.print(table)
    print_verdicts(sum(by_gpu.values(), Counter()), out)


if __name__ == "__main__":
    main()
