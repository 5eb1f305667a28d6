#!/usr/bin/env python3
"""Compares two training steps of SqueezeNet's first fire modules on a device with PyTorch in fp64, or with NumPy if it
is not installed. Both losses and gradients are compared.

    python tests/stress/check_training.py --target cuda
    python tests/stress/check_training.py --target opencl --batch 1 --size 33 --channels 24 --peer numpy          in seconds, on a CPU
    python tests/stress/check_training.py --target opencl --batch 128 --trials 200 --seconds 120                  tuned before

The step is plain SGD: weight - rate * gradient, for every weight. --precision float16 stores activations in fp16.
"""  # noqa: E501

from __future__ import annotations

import importlib.util

import click
import numpy as np

import romou
from romou.base.errors import RomouError
from training_reference import by_numpy, by_torch, relative_error, squeezenet_head

# Limits of each relative L2 error. Some of the millions of activations are very close to zero, or to another one of a
# pool. Rounding then decides whether a ReLU passes their gradient, and which pixel gets the gradient of a pool. The
# effect is measured in the peer: the change of its gradients if weights differ by more than a kernel's roundings. A
# gradient's error may be as large.
LIMITS = {"float32": 1e-4, "float16": 2e-2}
_ROUNDINGS = {"float32": 1e-5, "float16": 1e-2}


@click.command()
@click.option("--target", default="opencl", show_default=True)
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True)
@click.option(
    "--size", type=click.IntRange(min=23), default=224, show_default=True, help="Rows and columns of an image."
)
@click.option("--channels", type=click.IntRange(min=6), default=96, show_default=True, help="Of the first convolution.")
@click.option("--fires", type=click.IntRange(min=1), default=2, show_default=True, help="Fire modules.")
@click.option("--precision", type=click.Choice(list(LIMITS)), default="float32", show_default=True)
@click.option(
    "--peer",
    type=click.Choice(["torch", "numpy"]),
    default=None,
    help="What to compare with; by default PyTorch, where it is installed.",
)
@click.option(
    "--trials",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Configs to measure first, over all kernels.",
)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=None, help="Limit of the search.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), default=0.1, show_default=True, help="Learning rate."
)
def main(**options: object) -> None:
    """Print the error of every gradient. The exit code is 1 if one is wrong."""
    try:
        is_right = check(**options)  # type: ignore[arg-type]
    except RomouError as error:
        raise SystemExit(f"{error}") from error
    raise SystemExit(0 if is_right else 1)


def check(
    *,
    target: str,
    batch: int,
    size: int,
    channels: int,
    fires: int,
    precision: str,
    peer: str | None,
    trials: int,
    seconds: float | None,
    rate: float,
) -> bool:
    """Return whether all losses and gradients are within the limits."""
    model = squeezenet_head(batch, size, fires, channels=channels)
    rng = np.random.default_rng(1)
    inputs = {
        "image": rng.standard_normal((batch, 3, size, size)).astype("float32"),
        "labels": rng.integers(0, 10, batch),
    }
    step = romou.training.gradients(model, precision=precision)
    tuned = (
        romou.tune(step, target=target, trials=trials, seconds=seconds)
        if trials
        else romou.compile(step, target=target)
    )
    peer = peer or ("torch" if importlib.util.find_spec("torch") else "numpy")

    def by_peer(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for tensor in model.graph.initializer:
            tensor.raw_data = weights[tensor.name].astype("float32").tobytes()
        loss, gradients = (
            by_torch(model, inputs, importlib.import_module("torch")) if peer == "torch" else by_numpy(model, inputs)
        )
        return {"loss": np.array([loss]), **{name: gradients[name] for name in weights}}

    weights, wrong, worst = step.parameters, [], 0.0
    print(f"{'':12} {'error':>8} {'limit':>8}")
    for number in range(2):
        found = dict(zip(step.outputs, tuned.run({**inputs, **weights}), strict=True))
        right = by_peer(weights)
        nudged = by_peer(
            {
                name: value * (1 + _ROUNDINGS[precision] * rng.standard_normal(value.shape))
                for name, value in weights.items()
            }
        )
        for name, value in right.items():
            ours = found["loss"].reshape(1) if name == "loss" else found[f"{name}.grad"]
            error, limit = relative_error(ours, value), max(LIMITS[precision], relative_error(nudged[name], value))
            # The comparison also fails for NaN.
            is_right = error < limit
            print(f"{name + ' ' + str(number):12} {error:8.1e} {limit:8.1e}{'' if is_right else '  wrong'}")
            worst = max(worst, error)
            wrong += [] if is_right else [f"{name} {number}"]
        weights = {name: (value - rate * found[f"{name}.grad"]).astype(value.dtype) for name, value in weights.items()}
    kernels = [row.name for row in tuned.summary().rows if "backward" in row.name or "transpose" in row.name]
    verdict = f"wrong: {wrong}" if wrong else "all within the limits"
    print(f"{len(weights)} gradients, {worst:.1e} from {peer}'s in fp64 at worst; {verdict}")
    print(f"{len(kernels)} kernels of backward convolutions; a step takes {tuned.time():.3f} ms")
    return not wrong


if __name__ == "__main__":
    main()
