"""Executes the default kernels of the bundled networks as Adreno's machine code, and counts those with equal outputs.

    python benchmarks/bench_executed.py                                       prints what is kept in data/executed.json
    python benchmarks/bench_executed.py --execute --file new.json             eight networks, three GPUs: hours
    python benchmarks/bench_executed.py squeezenet1_0 --gpu a740 --execute --file new.json

The machine code is Mesa's. Adreno 630 runs fp32, the other GPUs fp16. What the file has is not executed again.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import romou
from romou import models
from romou.devices.mobile_compilers import mesa_version, mobile_gpu
from romou.driver.options import PrecisionName
from romou.tools.report.table import table_of_numbers

KEPT = Path(__file__).parent / "data/executed.json"
# GPU -> device and precision
WAYS: dict[str, tuple[str, PrecisionName]] = {
    "a630": ("adreno640", "float32"),
    "a740": ("adreno740", "float16"),
    "a830": ("adreno830", "float16"),
}


def executed(network: str, gpu: str, work_items: int) -> dict[str, Any]:
    """Return the numbers of a network's functions, and the reason of each that has no equal output."""
    device, precision = WAYS[gpu]
    functions = romou.simulate(
        models.load(network),
        target=f"opencl -device={device}",
        precision=precision,
        gpu=gpu,
        work_items=work_items,
    )
    kernels = [kernel for function in functions for kernel in function.kernels]
    return {
        "mesa": mesa_version(mesa=mobile_gpu(gpu).mesa),
        "precision": precision,
        "functions": len(functions),
        "equal": sum(function.problem is None for function in functions),
        "kernels": len(kernels),
        "groups": sum(kernel.groups for kernel in kernels),
        "all_groups": sum(kernel.all_groups for kernel in kernels),
        "compared": sum(function.compared for function in functions),
        "wave_instructions": sum(kernel.counts.instructions for kernel in kernels),
        "problems": {function.name: function.problem for function in functions if function.problem is not None},
    }


@click.command()
@click.argument("networks", nargs=-1, type=click.Choice(models.names()))
@click.option("--gpu", "gpus", type=click.Choice(list(WAYS)), multiple=True, default=list(WAYS), show_default=True)
@click.option("--work-items", default=1 << 12, show_default=True, help="Of a function's last kernel, about. 0 for all.")
@click.option("--execute", "is_executed", is_flag=True, help="Execute what the file lacks, and keep it there.")
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), default=KEPT, show_default=True)
def main(networks: tuple[str, ...], gpus: tuple[str, ...], work_items: int, is_executed: bool, file: Path) -> None:
    """Print a table with a row for each network and GPU, and the reasons of functions that are not equal below."""
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    table = table_of_numbers(
        "network",
        ("GPU", "functions", "equal", "kernels", "groups run", "elements compared", "million instructions of waves"),
        title="Executed as machine code",
    )
    shown = []
    for gpu, network in itertools.product(gpus, networks or models.names()):
        key = f"{network} {gpu}"
        if key not in results and is_executed:
            results[key] = executed(network, gpu, work_items)
            file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        if key in results:
            shown.append(key)
            own = results[key]
            table.add_row(
                *(network, gpu, *(str(own[name]) for name in ("functions", "equal", "kernels"))),
                f"{own['groups'] / own['all_groups']:.0%}",
                f"{own['compared']:,}",
                f"{own['wave_instructions'] / 1e6:.1f}",
            )
    out = Console(width=180)
    out.print(table)
    equal, functions = (sum(results[key][name] for key in shown) for name in ("equal", "functions"))
    reasons = [f"{key}, {name}: {text}" for key in shown for name, text in results[key]["problems"].items()]
    out.print(f"{equal} of {functions} functions have equal outputs.", *reasons, sep="\n", markup=False)


if __name__ == "__main__":
    main()
