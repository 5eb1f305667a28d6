"""Options that scripts with Mesa's compilers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from romou.devices.mobile_compilers import GPUS


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
