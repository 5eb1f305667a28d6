"""Measures tokens a second of a language model's decoder, and which share of the memory's bandwidth they use.

python benchmarks/bench_decoder.py [--model FILE.onnx | --full] [--weights W ...] [--target TARGET] [--precision P ...]
                                   [--prompt N] [--tokens N] [--chunk N] [--length N] [--trials N]
default: the bundled decoder, weights of 4 bits and of fp32, on opencl -device=host
in a minute or two: --full --layers 4 --words 8192 --precision float16

A token reads the weight of each product once, so the bandwidth limits its rate. `GB/s` are these bytes times the rate,
`share` is their part of the bytes a second that a copy reads and writes. --full makes a decoder of half a billion
weights, with seeded numbers. A line with the seconds of its steps follows each measurement, before the table.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import click
import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

import romou
from romou.models.decoder import FULL, DecoderShape, decoder

# Name of a kind of weights -> bits of a decoder.
_WEIGHTS = {"4 bits": 4, "fp32": 32}
_COLUMNS = ("weights", "precision", "tokens/s", "prompt tokens/s", "GB/s", "share")
_PRODUCTS = {"Gemm": (1,), "MatMul": (1,), "MatMulNBits": (1, 2, 3)}


def weight_bytes(model: onnx.ModelProto, precision: str) -> int:
    """Return the bytes of weights that a token reads in products."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    total = 0
    for node in model.graph.node:
        for position in _PRODUCTS.get(node.op_type, ()):
            tensor = tensors.get(node.input[position]) if position < len(node.input) else None
            if tensor is not None:
                is_narrowed = precision != "float32" and tensor.data_type == onnx.TensorProto.FLOAT
                total += onnx.numpy_helper.to_array(tensor).nbytes // (2 if is_narrowed else 1)
    return total


def copy_rate(target: str, mib: int) -> float:
    """Return the bytes a second that a kernel reads and writes."""
    elements = mib << 18
    text = f"agraph (float[{elements}] x) => (float[{elements}] y) {{ y = Neg(x) }}"
    graph = onnx.parser.parse_graph(text)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    compiled = romou.compile(model, target=target, verify=False)
    return 8 * elements / (1e-3 * min(compiled.times(repeat=5)))


class Watch:
    """The seconds of the steps before a measurement."""

    def __init__(self) -> None:
        self._steps: list[str] = []
        self._start = time.perf_counter()

    def mark(self, step: str) -> None:
        """End a step."""
        now = time.perf_counter()
        self._steps.append(f"{step} in {now - self._start:.1f} s")
        self._start = now

    @property
    def text(self) -> str:
        """The steps since the last text."""
        steps, self._steps = self._steps, []
        return ", ".join(steps)


@click.command()
@click.option("--model", default=None, help="A decoder as onnxruntime-genai exports it.")
@click.option("--full", is_flag=True, help="A decoder of half a billion weights.")
@click.option("--layers", default=None, type=int, help="Layers of it, where not all fit in memory as floats.")
@click.option("--words", default=None, type=int, help="Rows of its embedding, most of its weights with few layers.")
@click.option(
    "--weights", multiple=True, type=click.Choice(list(_WEIGHTS)), default=list(_WEIGHTS), help="Kinds of weights."
)
@click.option("--target", default="opencl -device=host", show_default=True)
@click.option("--precision", "precisions", multiple=True, default=["float32"], show_default=True)
@click.option("--prompt", default=64, show_default=True, help="Tokens of the prompt.")
@click.option("--tokens", default=64, show_default=True, help="Generated tokens.")
@click.option("--chunk", default=32, show_default=True, help="Tokens of the prompt in one run.")
@click.option("--length", default=None, type=int, help="Tokens that the caches have room for.")
@click.option("--trials", default=0, show_default=True, help="Candidates to measure. 0: default schedules.")
@click.option("--copy-mib", default=64, show_default=True, help="Size of the tensor whose copy is timed.")
def main(
    model: str | None,
    full: bool,
    layers: int | None,
    words: int | None,
    weights: Sequence[str],
    target: str,
    precisions: Sequence[str],
    prompt: int,
    tokens: int,
    chunk: int,
    length: int | None,
    trials: int,
    copy_mib: int,
) -> None:
    """Run the command line above."""
    shape = FULL if full else DecoderShape()
    sizes = {name: size for name, size in (("layers", layers), ("words", words)) if size is not None}
    shape = dataclasses.replace(shape, **sizes)
    limit = copy_rate(target, copy_mib)
    table = Table(title=f"{target}: a copy moves {limit / 1e9:.1f} GB/s")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _COLUMNS[:2] else "right")
    for name in [model] if model is not None else weights:
        # A decoder of fp32 weights takes as long as a compilation, so it is made when its turn comes.
        watch = Watch()
        proto = onnx.load(model) if model is not None else decoder(dataclasses.replace(shape, bits=_WEIGHTS[name]))
        watch.mark("made")
        for precision in precisions:
            made = romou.Decoder(
                proto, target=target, precision=precision, chunk=chunk, length=length, trials=trials, verify=False
            )
            watch.mark("compiled")
            ids = np.random.default_rng(0).integers(0, 1000 if model else shape.words, prompt).tolist()
            # Runs are captured in the second one.
            made.generate(ids, min(tokens, 4))
            result = made.generate(ids, tokens)
            watch.mark("ran")
            rate = result.rate or float("nan")
            bytes_a_second = rate * weight_bytes(proto, precision)
            cells = (f"{rate:.1f}", f"{result.prompt_rate:.1f}", f"{bytes_a_second / 1e9:.2f}")
            table.add_row(name, precision, *cells, f"{bytes_a_second / limit:.1%}")
            print(f"{name}, {precision}: {cells[0]} tokens/s, {cells[1]} of the prompt; {watch.text}", flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
