#!/usr/bin/env python3
"""Executes the kernels of random graphs as Adreno's machine code, and compares them with the unscheduled functions.

    python tests/stress/fuzz_simulator.py                         40 graphs of a new seed in every way
    python tests/stress/fuzz_simulator.py --cases 200 --seed 7     the graphs of seed 7
    python tests/stress/fuzz_simulator.py --seed 7 --first 41 --cases 1      one graph again

The graphs are those of fuzz_graphs.py. Ways: kernels on images and on buffers, in fp32 by Mesa's compiler for Adreno
630, in fp16 by that for Adreno 740. Functions with instructions that the simulator does not know, with fp64, with
indices that are random as well, or with launches in a loop of the host are not judged.
The exit code is 1 if a function is wrong.
"""

from __future__ import annotations

import random
from collections import Counter

import click

import romou
from graph_cases import Case, together
from random_graphs import case
from romou.base.errors import RomouError
from romou.driver.options import PrecisionName
from romou.tools.inspection.execute import ExecutedFunction

RIGHT, WRONG, NOT_JUDGED, REFUSED = "right", "wrong", "not judged", "refused graphs"
# Mesa compiles no fp64 for Adreno. Random indices are 0 or 1, and an axis may have one element.
NO_FAULTS = (
    "does not know",
    "are not executed",
    "use of type 'double'",
    "unknown type name 'double",
    "an access of ",
    "no unscheduled form",
    "are no tensors of",
)
# Graphs compiled as one model: starting Mesa's compiler takes longer than most of its work.
SEVERAL = 8
# name -> (target, precision)
WAYS: dict[str, tuple[str, PrecisionName]] = {
    "images": ("opencl -device=adreno640", "float32"),
    "buffers": ("opencl -device=adreno640 -images=never", "float32"),
    "images, fp16": ("opencl -device=adreno740", "float16"),
    "buffers, fp16": ("opencl -device=adreno740 -images=never", "float16"),
}


def outcome_of(function: ExecutedFunction) -> str:
    """Return whether an executed function is right, wrong, or cannot be judged."""
    if function.problem is None:
        return RIGHT
    return NOT_JUDGED if any(text in function.problem for text in NO_FAULTS) else WRONG


def run(graphs: dict[str, Case], way: str) -> Counter[str]:
    """Execute graphs as one model, or each alone if that is refused. Print the functions that are not right."""
    target, precision = WAYS[way]
    try:
        executed = romou.simulate(together(graphs).model(), target=target, precision=precision, work_items=1 << 13)
    except RomouError as error:
        if len(graphs) > 1:
            return sum((run({key: graph}, way) for key, graph in graphs.items()), Counter())
        print(f"{way}, {next(iter(graphs))}: {type(error).__name__}: {error}", flush=True)
        return Counter({REFUSED: 1})
    for function in executed:
        if function.problem is not None:
            print(f"{way}, {'/'.join(graphs)}, {function.name}: {outcome_of(function)}: {function.problem}", flush=True)
    return Counter(outcome_of(function) for function in executed)


@click.command()
@click.option("--cases", default=40, show_default=True, help="Number of graphs.")
@click.option("--seed", default=None, type=int, help="A new one without it.")
@click.option("--first", default=0, show_default=True, help="Number of the first graph.")
def main(cases: int, seed: int | None, first: int) -> None:
    """Print the functions that are not right, and their numbers in every way."""
    seed = random.SystemRandom().randrange(1 << 30) if seed is None else seed
    graphs = {f"g{number}_": case(seed, number, dtypes=("float32",)) for number in range(first, first + cases)}
    names, total = list(graphs), Counter[str]()
    for way in WAYS:
        found = Counter[str]()
        for at in range(0, cases, SEVERAL):
            found += run({name: graphs[name] for name in names[at : at + SEVERAL]}, way)
        print(
            f"seed {seed}, {cases} graphs, {way}: {', '.join(f'{n} {what}' for what, n in found.items())}", flush=True
        )
        total += found
    raise SystemExit(int(total[WRONG] > 0))


if __name__ == "__main__":
    main()
