#!/usr/bin/env python3
"""Compares square matrix products of the sizes of Boda's paper (Table I) with cuBLAS.

    python scripts/bench_sgemm.py --target "cuda -device=nvidia_h200" --trials 800 --seconds 300 --work-dir records_cuda
    python scripts/bench_sgemm.py --target opencl --only 128x128 --trials 20 --no-peer         without an NVIDIA GPU: Romou's side

fp32 without TF32, unless both sides are given it (--tf32). The right side is a constant that Romou packs at compile time. cuBLAS, through
PyTorch, gets it row by row and column by column, and the faster one counts. scripts/kernel_bench.py says how both sides are timed.
"""

from __future__ import annotations

from kernel_bench import Options, command, run

from romou.schedules.families.dense import Dense

SIZES = (128, 256, 384, 512, 768, 1024, 1536, 2048)


@command
def main(options: Options) -> None:
    """Print the table; exit code 1 if an output is wrong."""
    run([Dense(m=size, k=size, n=size, dtype=options.dtype) for size in SIZES], options, "square matrix products", "cuBLAS")


if __name__ == "__main__":
    main()
