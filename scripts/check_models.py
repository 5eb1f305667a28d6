#!/usr/bin/env python3
"""Are the bundled networks right on the first OpenCL device: fp32 and fp16, activations in buffers and in images, against onnxruntime in fp32.

    ROMOU_OPENCL_DEVICE="Intel(R) OpenCL" python scripts/check_models.py

Kernels have default schedules. In images: as for an Adreno 640, within the device's limits.
"""

from __future__ import annotations

import time

import click
import numpy as np
from onnxruntime.transformers.float16 import convert_float_to_float16

import romou
from romou import models
from romou.frontend.reference import run_onnxruntime
from romou.module import random_inputs

PLACES = {"buffers": "opencl -device=host", "images": "opencl -device=adreno640"}
# Relative L2 error of an output.
LIMITS = {"float32": 1e-4, "float16": 2e-2}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(models.names()))
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(list(LIMITS)), default=list(LIMITS), show_default=True)
@click.option("--place", "places", multiple=True, type=click.Choice(list(PLACES)), default=list(PLACES), show_default=True)
def main(names: tuple[str, ...], dtypes: tuple[str, ...], places: tuple[str, ...]) -> None:
    """Print a line for each network, type and place; exit code 1 if one is wrong."""
    wrong = 0
    for name in names or models.names():
        model = models.load(name)
        for dtype in dtypes:
            given = model if dtype == "float32" else convert_float_to_float16(models.load(name))
            for place in places:
                started = time.monotonic()
                tuned = romou.compile(given, target=PLACES[place], device=0)
                inputs = random_inputs(tuned.inputs, seed=0)
                expected = run_onnxruntime(model, {key: x.astype("float32") if x.dtype == np.float16 else x for key, x in inputs.items()})
                assert expected is not None, f"onnxruntime does not run {name}"
                errors = [np.linalg.norm(f.astype("f8") - e) / np.linalg.norm(e) for f, e in zip(tuned.run(inputs), expected, strict=True)]
                is_right = max(errors) <= LIMITS[dtype]
                wrong += not is_right
                seconds = time.monotonic() - started
                print(f"{name} {dtype} {place}: {'right' if is_right else 'WRONG'}, relative L2 error {max(errors):.2e} ({seconds:.0f} s)", flush=True)
    print(f"{wrong} wrong")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
