#!/usr/bin/env python3
"""Compares the convolutions of AlexNet (forward, batch 128) with cuDNN, in percent of the fp32 peak, as the BEAST paper does.

    python scripts/bench_alexnet.py --target "cuda -device=nvidia_h200" --trials 600 --seconds 480 --work-dir records_cuda
    python scripts/bench_alexnet.py --target opencl --batch 1 --trials 10 --no-peer            without an NVIDIA GPU: Romou's side

The shapes are those without the two towers. The peak comes from the target's device file. scripts/kernel_bench.py says how both sides are timed.
"""

from __future__ import annotations

import click
from kernel_bench import Options, command, run

from romou.schedules.workload import Conv2d
from romou.tasks.operators import conv

# (input channels, side, output channels, kernel, stride, padding) of layers 1 to 5.
LAYERS = ((3, 224, 96, 11, 4, 2), (96, 27, 256, 5, 1, 2), (256, 13, 384, 3, 1, 1), (384, 13, 384, 3, 1, 1), (384, 13, 256, 3, 1, 1))


def layer(number: int, batch: int, dtype: str) -> Conv2d:
    """Return the convolution of layer 1 to 5."""
    channels, side, outputs, kernel, stride, padding = LAYERS[number - 1]
    return conv(channels, (side,) * 2, outputs, (kernel,) * 2, dtype, stride=(stride,) * 2, padding=(padding,) * 4, batch=batch)


@command
@click.option("--batch", type=click.IntRange(min=1), default=128, show_default=True)
def main(options: Options, batch: int) -> None:
    """Print the table; exit code 1 if an output is wrong."""
    run([layer(number, batch, options.dtype) for number in range(1, len(LAYERS) + 1)], options, f"AlexNet's convolutions, batch {batch}", "cuDNN")


if __name__ == "__main__":
    main()
