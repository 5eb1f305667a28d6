"""Options of scripts with Mesa's compilers, and the vendor's counts that they print beside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from romou.base.errors import BuildError
from romou.devices.mobile_compilers import GPUS, compile_by_vendor, vendor_compiler
from romou.tools.inspection.kernels import InspectedKernel


def gpus_option(compared: Sequence[str]) -> Callable[[Any], Any]:
    """Return the option --gpu, which may be repeated. compared: its default."""
    return click.option(
        "--gpu", "gpus", type=click.Choice(list(GPUS)), multiple=True, default=list(compared), show_default=True
    )


precisions_option = click.option(
    "--precision",
    "precisions",
    type=click.Choice(["float32", "float16"]),
    multiple=True,
    default=["float32", "float16"],
    show_default=True,
)
layers_option = click.option("--only", default="", help="Only layers whose name holds this text.")


def by_vendor(kernels: Sequence[InspectedKernel], gpu: str) -> str:
    """Return registers, spills and cycles of each kernel, loops once, as "; vendor: r32 S 4 cycles".

    They are by the vendor's compiler. "" if the user has none (`romou/devices/mobile_compilers/vendor.py`).
    """
    if vendor_compiler(gpu) is None:
        return ""
    said = compile_by_vendor([(kernel.name, kernel.source) for kernel in kernels], gpu)
    texts = (
        str(each).splitlines()[0]
        if isinstance(each, BuildError)
        else f"r{each.registers}{' S' * each.is_spilling} {each.cycles:g} cycles"
        for each in said
    )
    return f"; vendor: {' + '.join(texts)}"
