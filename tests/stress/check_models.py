#!/usr/bin/env python3
"""Compares the bundled networks on the first device of a kind with onnxruntime in fp32: in fp32, fp16 and mixed, with
activations in buffers and in images.

    ROMOU_OPENCL_DEVICE="Intel(R) OpenCL" python tests/stress/check_models.py
    python tests/stress/check_models.py --kind vulkan --precision float32 --place buffers

Kernels have default schedules. Images are placed as for an Adreno 640, within the device's limits.
"""

from __future__ import annotations

import itertools
import time

import click

import romou
from romou import models
from romou.base.inputs import random_inputs
from romou.compiler.frontend.precision import TOLERANCE
from romou.compiler.frontend.reference import relative_l2_error, run_onnxruntime
from romou.driver.options import PrecisionName

PLACES = {"buffers": "-device=host", "images": "-device=adreno640"}
# Relative L2 error of an output.
LIMITS = {"float32": 1e-4, "float16": TOLERANCE, "mixed": TOLERANCE}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(models.names()))
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(list(LIMITS)),
    default=["float32", "float16"],
    show_default=True,
)
@click.option(
    "--place", "places", multiple=True, type=click.Choice(list(PLACES)), default=list(PLACES), show_default=True
)
@click.option("--kind", default="opencl", show_default=True, help="Of a target.")
def main(names: tuple[str, ...], precisions: tuple[PrecisionName, ...], places: tuple[str, ...], kind: str) -> None:
    """Print a line for each network, precision and place. The exit code is 1 if one is wrong."""
    wrong = 0
    for name in names or models.names():
        for precision, place in itertools.product(precisions, places):
            started = time.monotonic()
            tuned = romou.compile(
                models.load(name), target=f"{kind} {PLACES[place]}", device=0, precision=precision, verify=False
            )
            inputs = random_inputs(tuned.inputs, seed=0)
            expected = run_onnxruntime(models.load(name), inputs)
            assert expected is not None, f"onnxruntime does not run {name}"
            error = max(relative_l2_error(f, e) for f, e in zip(tuned.run(inputs), expected, strict=True))
            is_right = error <= LIMITS[precision]
            wrong += not is_right
            seconds = time.monotonic() - started
            print(
                f"{name} {precision} {place}: {'right' if is_right else 'WRONG'}, relative L2 error {error:.2e}"
                f" ({seconds:.0f} s)",
                flush=True,
            )
    print(f"{wrong} wrong")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
