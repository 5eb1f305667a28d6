"""Eight well-known networks as small ONNX graphs, for demonstrations, tests and benchmarks.

The graphs were exported by PyTorch from torchvision, timm and transformers with their float weights taken out. `load`
fills them with seeded values. They compute no useful answer, but have the shapes, the operators and the cost of the
real networks.

A ninth model, "decoder", is built by `decoder.py`: two layers of a language model with weights of four bits.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from romou.base.errors import unknown_name
from romou.models.decoder import decoder

if TYPE_CHECKING:
    import onnx

PREFIX = "bundled:"
DECODER = "decoder"
_GRAPHS = Path(__file__).parent


def names() -> tuple[str, ...]:
    """Return the names of the networks, sorted. `load` takes them, and "decoder"."""
    return tuple(sorted(path.stem for path in _GRAPHS.glob("*.onnx")))


def load(name: str, *, seed: int = 0) -> onnx.ModelProto:
    """Return a complete, checked model: weights He-normal by fan-in, biases small, norm scales near one.

    Each tensor has a random stream seeded by `seed` and its name, so a model is the same on every machine.

    Raises
    ------
    UsageError
        There is no network of that name. The message has all names and the nearest one.
    """
    if name == DECODER:
        return decoder(seed=seed)
    if name not in names():
        raise unknown_name("bundled model", name, (*names(), DECODER))
    import onnx

    model = onnx.load(str(_GRAPHS / f"{name}.onnx"))
    for tensor in model.graph.initializer:
        count = int(np.prod(tensor.dims))
        is_stripped = tensor.data_type == onnx.TensorProto.FLOAT and not tensor.raw_data and not tensor.float_data
        if is_stripped and count:
            tensor.raw_data = _weights(tensor.name, tuple(tensor.dims), seed).astype("<f4").tobytes()
    onnx.checker.check_model(model)
    return model


def bundled(model: object) -> onnx.ModelProto | None:
    """Return the network that "bundled:NAME" names. None for anything else.

    Raises
    ------
    UsageError
        There is no network of that name. The message has the nearest one.
    """
    return load(model.removeprefix(PREFIX)) if isinstance(model, str) and model.startswith(PREFIX) else None


def hint(name: str) -> str:
    """Return the hint for a model file that does not exist."""
    known_names = (*names(), DECODER)
    if name in known_names:
        return f"{PREFIX}{name} is a bundled network."
    return f"Bundled networks: {', '.join(PREFIX + known for known in known_names)}."


def _weights(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return values that keep activations finite through a deep net, float64 of `shape`."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if len(shape) > 1:
        fan_in = int(np.prod(shape)) // shape[0]
        return np.asarray(rng.standard_normal(shape) * np.sqrt(2.0 / fan_in))
    if name.endswith(("var", "weight", "gamma")):
        return np.asarray(1.0 + 0.1 * np.abs(rng.standard_normal(shape)))
    return np.asarray(0.02 * rng.standard_normal(shape))
