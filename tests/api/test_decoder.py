"""romou.Decoder: the tokens are those of a loop around onnxruntime, whatever the prompt's length."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import romou
from romou.api.decoder import _Choice
from romou.base.errors import ModelError, UsageError
from romou.cli import main
from romou.compiler.frontend.decoder_graph import CachedModel
from romou.models.decoder import DecoderShape, decoder
from romou.runtime.module.machine import Machine
from romou.runtime.module.manifest import META, read_manifest, write_manifest
from support.models.decoding import onnxruntimes_tokens, prompt_of
from support.models.small_networks import prime_net
from support.suite.exhaustive import exhaustive

SMALL = DecoderShape(width=64, heads=4, size=16, inner=96, words=256, longest=100)
CHUNK, TOKENS = 8, 64


@pytest.fixture(scope="module")
def small() -> romou.Decoder:
    return romou.Decoder(decoder(SMALL), chunk=CHUNK, target="opencl -device=host", verify=False)


@pytest.mark.parametrize("length", [1, 3, CHUNK, 21], ids=["one", "less than a chunk", "a chunk", "several chunks"])
def test_tokens_are_onnxruntimes(length: int, small: romou.Decoder) -> None:
    prompt = prompt_of(length, SMALL.words)
    made = small.generate(prompt, TOKENS)
    assert list(made.tokens) == onnxruntimes_tokens(decoder(SMALL), prompt, TOKENS)
    assert len(set(made.tokens)) > 3


@exhaustive
def test_the_bundled_decoder() -> None:
    model = onnx.load_from_string(decoder().SerializeToString())
    prompt = prompt_of(37, DecoderShape().words)
    made = romou.Decoder("bundled:decoder", target="opencl -device=host").generate(prompt, TOKENS)
    assert list(made.tokens) == onnxruntimes_tokens(model, prompt, TOKENS)
    assert len(set(made.tokens)) > TOKENS // 2


def test_all_of_it_runs_on_the_device(small: romou.Decoder) -> None:
    for model in small.models:
        assert model.host_nodes == ()


def test_weights_are_on_the_device_once(small: romou.Decoder) -> None:
    """Both models store their weights alike. Each has a few constants that the other one lacks, a page at most."""
    one, many = (model.summary().memory for model in small.models)
    assert one is not None
    assert many is not None
    assert max(one.weights, many.weights) <= small.memory.weights <= one.weights + 4 * 4096
    assert small.memory.total < one.total + many.total - one.weights


def test_a_token_ends_the_text(small: romou.Decoder) -> None:
    prompt = prompt_of(5, SMALL.words)
    tokens = small.generate(prompt, 9).tokens
    assert small.generate(prompt, 9, stop=[tokens[4]]).tokens == tokens[: tokens.index(tokens[4]) + 1]


def test_a_saved_decoder_is_not_compiled_again(
    small: romou.Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small.save(tmp_path / "small.romou")
    monkeypatch.setattr("romou.api.decoder.compile_one", None)
    again = romou.Decoder.load(folder)
    prompt = prompt_of(11, SMALL.words)
    assert again.generate(prompt, 20).tokens == small.generate(prompt, 20).tokens
    assert (again.length, again.chunk, again.memory) == (small.length, small.chunk, small.memory)
    assert again.models[0].capture == small.models[0].capture
    with pytest.raises(UsageError, match=r"prompt has the token 256"):
        again.generate([256])


def test_the_second_start_compiles_no_program(
    small: romou.Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's programs are loaded as well."""
    folder = small.save(tmp_path / "small.romou")
    for name, value in {"QUIRKS_OFF": "pocl_headers", "CACHE_DIR": str(tmp_path), "PROGRAM_CACHE_MB": "64"}.items():
        monkeypatch.setenv(f"ROMOU_{name}", value)
    first, second = (romou.Decoder.load(folder).models[0].programs for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.cached == 0 < first.compiled
    assert (second.cached, second.compiled, second.notes) == (first.compiled, 0, ())


def test_other_folders_are_no_decoders(tmp_path: Path) -> None:
    romou.compile(prime_net(), target="null").save(tmp_path / "net.romou")
    with pytest.raises(ModelError, match="a saved model, but no decoder"):
        romou.Decoder.load(tmp_path / "net.romou")
    with pytest.raises(ModelError, match="no saved model"):
        romou.Decoder.load(tmp_path / "none")


def test_a_decoder_that_an_earlier_version_saved(small: romou.Decoder, tmp_path: Path) -> None:
    folder = small.save(tmp_path / "small.romou")
    about = {name: value for name, value in read_manifest(folder).items() if name != "files"}
    del about["decoder"]["is_left_padded"]
    (folder / META).unlink()
    write_manifest(folder, about)
    assert len(romou.Decoder.load(folder).generate([1, 2, 3], 2).tokens) == 2


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"chunk": "eight"}, "chunk"),
        ({"chunk": 1}, "it has other models than a decoder"),
        ({"state": {"past": "present"}}, "its models have other inputs"),
        ({"inputs": 3}, "inputs"),
        ({"length": 101}, "its models have other inputs"),
        ({"token": "logits"}, "its models have other outputs"),
        ({"token": "none"}, "its models have other outputs"),
        ({"is_left_padded": True}, "its models have other inputs"),
    ],
)
def test_a_description_that_others_changed_is_named(
    changed: dict[str, Any], reason: str, small: romou.Decoder, tmp_path: Path
) -> None:
    folder = small.save(tmp_path / "small.romou")
    about = {name: value for name, value in read_manifest(folder).items() if name != "files"}
    (folder / META).unlink()
    write_manifest(folder, about | {"decoder": about["decoder"] | changed})
    with pytest.raises(ModelError, match="romou.json cannot be used") as error:
        romou.Decoder.load(folder)
    assert reason in str(error.value)


def test_tokens_are_told_one_by_one_and_drawn_by_their_likelihood(small: romou.Decoder) -> None:
    prompt, told = prompt_of(5, SMALL.words), []
    likely = small.generate(prompt, 12, on_token=told.append).tokens
    assert tuple(told) == likely
    assert small.generate(prompt, 12, temperature=2.0, top_k=1).tokens == likely
    drawn = [small.generate(prompt, 12, temperature=5.0, top_k=4, seed=seed).tokens for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != likely


@pytest.mark.parametrize(("temperature", "elements"), [(0.0, 1), (2.0, SMALL.words)])
def test_only_a_draw_copies_logits_to_the_host(
    temperature: float, elements: int, small: romou.Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    step = Machine.step

    def counted(*arguments: Any) -> list[np.ndarray]:
        outputs = step(*arguments)
        copied.extend(output.size for output in outputs)
        return outputs

    monkeypatch.setattr(Machine, "step", counted)
    small.generate(prompt_of(11, SMALL.words), 6, temperature=temperature)
    assert copied == [elements] * 7  # two chunks of the prompt, and five tokens


def test_draws_are_as_likely_as_their_logits_say() -> None:
    logits = np.log(np.array([1, 6, 3, 30], np.float32))
    choose = _Choice.checked(1.0, 3, 0)
    counts = np.bincount([choose(logits) for _ in range(4000)], minlength=4)
    assert counts[0] == 0
    assert np.abs(counts / 4000 - np.array([0, 6, 3, 30]) / 39).max() < 0.03
    for wrong in ((-1.0, None, 0), ("hot", None, 0), (1.0, 0, 0), (1.0, None, -1)):
        with pytest.raises(UsageError):
            _Choice.checked(*wrong)  # type: ignore[arg-type]


def test_the_command(small: romou.Decoder, tmp_path: Path) -> None:
    folder, run = str(small.save(tmp_path / "small.romou")), CliRunner().invoke
    expected = small.generate([1, 2, 3], 5).tokens
    result = run(main, ["generate", folder, "--prompt", "1,2,3", "--tokens", "5", "--json"])
    assert result.exit_code == 0, result.output
    assert tuple(json.loads(result.stdout)["tokens"]) == expected
    again = str(tmp_path / "again.romou")
    shown = run(main, ["generate", folder, "--prompt", "1,2,3", "--tokens", "5", "-o", again])
    assert shown.stdout.splitlines()[0] == ",".join(map(str, expected))
    assert shown.stdout.splitlines()[1].endswith("on opencl -device=host")
    assert [line.split()[0] for line in shown.stderr.splitlines()][:3] == ["Loading", "Loading", "Device:"]
    drawn = run(main, ["generate", again, "--prompt", "1,2,3", "--tokens", "5", "--temperature", "9", "--seed", "3"])
    assert drawn.stdout.splitlines()[0] != shown.stdout.splitlines()[0]
    for arguments, message in (
        ([folder, "--prompt", "one"], "the decoder has no tokenizer.json"),
        ([folder, "--prompt", "4096"], "the model's vocabulary has 256 words"),
        ([folder, "--prompt", "1", "--trials", "3"], "--trials: "),
    ):
        wrong = run(main, ["generate", *arguments])
        assert wrong.exit_code == 2
        assert message in " ".join(wrong.stderr.split())


def test_the_command_names_the_drivers_compiler_and_leaves_it_out_of_rates(
    small: romou.Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, prompts = romou.Decoder.generate, []

    def slow_at_first(decoder: romou.Decoder, ids: list[int], *arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        if not prompts:
            time.sleep(2.5)
        prompts.append(ids)
        made = generate(decoder, ids, *arguments, **options)
        return dataclasses.replace(made, prompt_s=time.perf_counter() - started)

    monkeypatch.setattr(romou.Decoder, "generate", slow_at_first)
    folder = str(small.save(tmp_path / "small.romou"))
    result = CliRunner().invoke(main, ["generate", folder, "--prompt", "1,2,3", "--tokens", "5", "--json"])
    assert prompts == [[1, 2, 3]] * 2
    assert "The driver compiles the kernels, which no rate counts ..." in result.stderr.splitlines()
    assert json.loads(result.stdout)["prompt_s"] < 2.5


@pytest.mark.parametrize(
    ("prompt", "tokens", "reason"),
    [
        ([], 1, "the prompt is empty"),
        ([1] * 90, 12, "90 tokens and 12 more do not fit into caches of 100"),
        ([1.5], 1, "prompt"),
        ([1], 0, "tokens"),
        (None, 1, "prompt=None: must be a list of tokens"),
        ("15", 1, "prompt='15': must be a list of tokens"),
        ([3, 256], 1, r"prompt has the token 256; the model's vocabulary has 256 words, 0 to 255"),
        ([2**40], 1, "prompt has the token 1099511627776"),
    ],
)
def test_wrong_prompts(prompt: Any, tokens: int, reason: str, small: romou.Decoder) -> None:
    with pytest.raises(UsageError, match=reason):
        small.generate(prompt, tokens)
    assert len(small.generate([255], 1).tokens) == 1


@pytest.mark.parametrize(("stop", "reason"), [(5, "stop=5: must be a list"), ([256], "stop has the token 256")])
def test_wrong_ends(stop: Any, reason: str, small: romou.Decoder) -> None:
    with pytest.raises(UsageError, match=reason):
        small.generate([1], 2, stop=stop)


def test_wrong_models() -> None:
    with pytest.raises(ModelError, match="no GroupQueryAttention reads one from an input and returns it"):
        CachedModel.of(prime_net())
    with pytest.raises(UsageError, match="length=101: the model knows 100 positions"):
        CachedModel.of(decoder(SMALL), 101)
    other = decoder(SMALL)
    other.graph.input.append(onnx.helper.make_tensor_value_info("beams", onnx.TensorProto.INT64, [1]))
    with pytest.raises(ModelError, match="the model's inputs are input_ids, attention_mask, beams"):
        CachedModel.of(other)
