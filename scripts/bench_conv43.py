#!/usr/bin/env python3
"""Compares the 43 convolutions of Boda's and MetaGPU's papers (batch 5) with cuDNN, which may choose its layout and algorithm.

    python scripts/bench_conv43.py --target "cuda -device=nvidia_h200" --trials 4000 --seconds 480 --work-dir records_cuda
    python scripts/bench_conv43.py --target "opencl -device=nvidia_h200" --seconds 480 --work-dir records_opencl --json conv43_opencl.json
    python scripts/bench_conv43.py --target opencl --only 1x1_s1 --trials 50 --no-peer         without an NVIDIA GPU: Romou's side

fp32 without TF32 (--tf32: with it, on both sides; --dtype float16: fp16, where cuDNN has tensor cores). The peer is the faster of cuDNN's two
layouts (NCHW and channels_last) in benchmark mode, through PyTorch. scripts/kernel_bench.py says what both sides are given and how they are timed.
"""

from __future__ import annotations

from kernel_bench import Options, command, run
from operator_lists import conv43


@command
def main(options: Options) -> None:
    """Print the table; exit code 1 if an output is wrong."""
    run(conv43(options.dtype), options, "{count} of 43 convolutions, batch 5", "cuDNN")


if __name__ == "__main__":
    main()
