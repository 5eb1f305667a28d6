"""romou.Decoder of a model that appends to its caches: the tokens are those of a loop around onnxruntime."""

from __future__ import annotations

import collections
import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

import romou
from romou.base.errors import ModelError, RomouError, UsageError
from romou.compiler.frontend.decoder_graph import CachedModel
from romou.models.decoder import decoder
from support.models.appending_decoder import appending_decoder
from support.models.decoding import onnxruntimes_tokens, prompt_of
from support.suite.exhaustive import exhaustive

WORDS, LENGTH, CHUNK, TOKENS = 97, 48, 8, 24
# A row of padding attends to nothing: without care, -inf makes it NaN, in the caches from the second layer on.
NAN = {"hidden": -np.inf}
LEARNED = {"shared": 4, "table": LENGTH}


def made(model: onnx.ModelProto, chunk: int = CHUNK, **options: Any) -> romou.Decoder:
    return romou.Decoder(model, length=LENGTH, chunk=chunk, target="opencl -device=host", **options)


@pytest.fixture(scope="module")
def small() -> romou.Decoder:
    return made(appending_decoder(**NAN))


def assert_tokens(of: romou.Decoder, model: onnx.ModelProto, lengths: list[int], tokens: int = TOKENS) -> None:
    for length in lengths:
        prompt, count = prompt_of(length, WORDS), min(tokens, LENGTH + 1 - length)
        tokens_made = of.generate(prompt, count).tokens
        assert list(tokens_made) == onnxruntimes_tokens(model, prompt, count), length
        assert count < TOKENS or len(set(tokens_made)) > 3


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3, LENGTH - TOKENS + 1, LENGTH])
def test_tokens_are_onnxruntimes(length: int, small: romou.Decoder) -> None:
    """With keys and values for two heads of queries each, up to the end of the caches."""
    assert_tokens(small, appending_decoder(**NAN), [length])


@pytest.mark.parametrize(
    ("form", "options", "tokens"),
    [
        (LEARNED, {}, TOKENS),
        ({"shared": 1, "positions": "mask"}, {"precision": "float16"}, 3),
        pytest.param({**LEARNED, "positions": "mask"}, {"chunk": 1}, TOKENS, marks=exhaustive),
        pytest.param({"dtype": "float16"}, {}, 3, marks=exhaustive),
        pytest.param(NAN, {"precision": "float16"}, 3, marks=exhaustive),
        pytest.param({}, {"trials": 6, "seconds": 60, "work_dir": False}, TOKENS, marks=exhaustive),
    ],
    ids=["learned positions", "fp16", "one token a run", "fp16 weights", "fp16 and -inf", "tuned"],
)
def test_other_forms(form: dict[str, Any], options: dict[str, Any], tokens: int) -> None:
    """In fp16, the most likely token and the next one are soon closer than fp16 is exact."""
    model = appending_decoder(**form)
    assert_tokens(made(model, **options), model, [CHUNK + 3, 5], tokens)


def test_all_of_it_runs_on_the_device(small: romou.Decoder) -> None:
    assert [model.host_nodes for model in small.models] == [(), ()]


def test_the_last_product_computes_one_row() -> None:
    model, _ = CachedModel.of(appending_decoder(), LENGTH, CHUNK).for_rows(CHUNK)
    product, rows = (next(n for n in reversed(model.graph.node) if n.op_type == op) for op in ("MatMul", "Gather"))
    assert product.input[0] == rows.output[0]


def test_a_saved_decoder_is_the_same(small: romou.Decoder, tmp_path: Path) -> None:
    again = romou.Decoder.load(small.save(tmp_path / "small.romou"))
    assert_tokens(again, appending_decoder(**NAN), [CHUNK + 3])


def test_a_decoder_of_both_forms_writes_in_place() -> None:
    assert not CachedModel.of(decoder()).form.is_left_padded


@pytest.mark.parametrize(
    "form", [{"positions": "length"}, {"positions": "length", "table": LENGTH}, {"is_causal": False}]
)
def test_logits_that_would_be_wrong_are_refused(form: dict[str, Any]) -> None:
    """The mask of an exporter that traced one token may hide no later token of a run."""
    model = appending_decoder(**form)
    with pytest.raises(ModelError, match="its positions follow from that length, or its mask is made for") as error:
        made(model)
    assert "It then has the input position_ids. A mask for one token needs a chunk of 1." in str(error.value)
    with contextlib.nullcontext() if "is_causal" in form else pytest.raises(ModelError):
        CachedModel.of(model, LENGTH, chunk=1)


@pytest.mark.parametrize("positions", ["input", "length"])
def test_rounding_of_quantized_activations_is_told_from_wrong_positions(positions: str, tmp_path: Path) -> None:
    onnx.save(appending_decoder(positions=positions), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "bytes.onnx", weight_type=QuantType.QInt8)
    with contextlib.nullcontext() if positions == "input" else pytest.raises(ModelError, match="depend on the length"):
        CachedModel.of(tmp_path / "bytes.onnx", LENGTH, CHUNK)


@pytest.mark.parametrize("positions", ["input", "mask"])
def test_a_length_beyond_the_positions_is_refused(positions: str) -> None:
    with pytest.raises(UsageError, match=f"length={LENGTH + 1}: the model "):
        CachedModel.of(appending_decoder(**{**LEARNED, "positions": positions}), LENGTH + 1)


def _merged(model: onnx.ModelProto) -> None:
    model.graph.input.append(onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1]))


def _without_mask(model: onnx.ModelProto) -> None:
    model.graph.input[1].name = "mask"
    for node in model.graph.node:
        node.input[:] = ["mask" if name == "attention_mask" else name for name in node.input]


def _two_outputs(model: onnx.ModelProto) -> None:
    model.graph.output.append(onnx.helper.make_tensor_value_info(model.graph.node[-2].output[0], 1, None))


def _open_heads(model: onnx.ModelProto) -> None:
    model.graph.input[3].type.tensor_type.shape.dim[1].dim_param = "heads"


def _one_cache_is_none(model: onnx.ModelProto) -> None:
    del model.graph.output[1]


def _another_axis(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for attribute in node.attribute if node.output[0].startswith("present") else ():
            attribute.i = 3


def _of_one_length(model: onnx.ModelProto) -> None:
    for value in model.graph.input[3:]:
        value.type.tensor_type.shape.dim[2].dim_value = 12


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_merged, "the model is two decoders, between which use_cache_branch chooses"),
        (_without_mask, "the model's inputs are input_ids, mask, position_ids; a decoder has"),
        (_two_outputs, "the model's outputs besides caches are logits, t.*; a decoder computes only logits"),
        (_open_heads, "the cache 'past_key_values.0.key' leaves its heads or their size open"),
        (_one_cache_is_none, "the model's inputs are input_ids, attention_mask, position_ids, past_key_values.0.key;"),
        (_another_axis, "the model has no caches"),
        (_of_one_length, "the decoder cannot be checked with caches of a fixed length: "),
    ],
)
def test_other_models_are_refused(damage: Any, reason: str) -> None:
    model = appending_decoder()
    damage(model)
    with pytest.raises(ModelError, match=reason):
        CachedModel.of(model)


def _damage(model: onnx.ModelProto, rng: random.Random) -> None:
    graph, names = model.graph, [name for node in model.graph.node for name in (*node.input, *node.output)]
    node, values = rng.choice(graph.node), rng.choice((graph.input, graph.output))
    value = rng.choice(values)
    dimension = rng.choice(value.type.tensor_type.shape.dim)
    damages: list[Callable[[], object]] = [
        lambda: graph.node.remove(node),
        lambda: values.remove(value),
        lambda: node.input.__setitem__(0, rng.choice(names)),
        lambda: setattr(value, "name", rng.choice(names)),
        lambda: setattr(value.type.tensor_type, "elem_type", rng.choice((1, 6, 7, 8, 9, 10, 11, 16))),
        lambda: setattr(dimension, "dim_value", rng.choice((0, 1, 3, -1, 100))),
        lambda: [setattr(attribute, "i", rng.randint(-1, 4)) for attribute in node.attribute],
    ]
    rng.choice(damages)()


def test_a_damaged_model_is_one_error() -> None:
    rng, right = random.Random(0), appending_decoder(layers=1).SerializeToString()
    ends = collections.Counter()
    for _ in range(150):
        model = onnx.load_from_string(right)
        for _ in range(rng.randint(1, 2)):
            _damage(model, rng)
        try:
            CachedModel.of(model, 20, 4)
            ends["taken"] += 1
        except RomouError as error:
            ends[type(error)] += 1
    assert ends["taken"] > 10
    assert ends[ModelError] > 60
