"""Text in, text out: a decoder's tokenizer.json, in Python and in romou generate."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

import romou
from romou.base.errors import ModelError, UsageError
from romou.cli import main
from romou.models.decoder import DecoderShape, decoder

SHAPE = DecoderShape(layers=1, width=32, heads=2, shared=1, size=16, inner=32, words=259, longest=40)
PROMPT, TOKENS = "ab é", 12


def tokenizer_file(words: int = 256) -> bytes:
    """Return a tokenizer with a token for each byte, spelled as GPT-2 does, and more if `words` is larger."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [*map(chr, plain), *(chr(256 + i) for i in range(256 - len(plain)))]
    vocabulary = {letter: i for i, letter in enumerate([*letters, *(f"word{i}" for i in range(words - 256))])}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    parts = {"pre_tokenizer": byte_level, "decoder": byte_level, "model": model}
    return json.dumps({"version": "1.0", "added_tokens": [], **parts}).encode()


@pytest.fixture(scope="module", autouse=True)
def _tokenizers(request: pytest.FixtureRequest) -> None:
    if importlib.util.find_spec("tokenizers") is None:
        missing = "tokenizers is not installed: pip install 'romou[text]'"
        (pytest.fail if request.config.getoption("--all-platforms") else pytest.skip)(missing)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    onnx.save(decoder(SHAPE), folder / "model.onnx")
    (folder / "tokenizer.json").write_bytes(tokenizer_file())
    run = [str(folder / "model.onnx"), "--prompt", PROMPT, "--tokens", "1", "--target", "null", "--chunk", "4"]
    result = CliRunner().invoke(main, ["generate", *run, "-o", str(folder / "saved.romou")])
    assert result.exit_code == 0, result.output
    (folder / "tokenizer.json").unlink()
    return folder / "saved.romou"


def test_text_goes_in_and_comes_out(saved: Path, tmp_path: Path) -> None:
    """Characters of several tokens come whole."""
    made = romou.Decoder.load(saved)
    ids = made.tokens_of(PROMPT)
    assert made.text_of(ids) == PROMPT
    assert len(ids) == len(PROMPT.encode())
    assert made.text_of(ids[:-1]) == "ab \ufffd"
    expected = made.generate(ids, TOKENS).tokens
    arguments = ["generate", str(saved), "--prompt", PROMPT, "--tokens", str(TOKENS)]
    shown = CliRunner().invoke(main, [*arguments, "-o", str(tmp_path / "again.romou")])
    assert shown.stdout.startswith(made.text_of(expected) + "\n"), shown.output
    document = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert (tuple(document["tokens"]), document["text"]) == (expected, made.text_of(expected))
    assert romou.Decoder.load(tmp_path / "again.romou").tokens_of(PROMPT) == ids
    numbers = CliRunner().invoke(main, [*arguments[:3], ",".join(map(str, ids)), *arguments[4:]])
    assert numbers.stdout.splitlines()[0] == ",".join(map(str, expected))


@pytest.mark.parametrize(
    ("content", "error", "reason"),
    [
        (None, UsageError, "the decoder has no tokenizer.json"),
        (tokenizer_file(300), ModelError, "tokenizer.json has the token 299; the model's vocabulary has 259 words"),
        (b"{}", ModelError, "tokenizer.json cannot be read"),
        (b"\xff", ModelError, "tokenizer.json cannot be read"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_named(
    content: bytes | None, error: type[Exception], reason: str, saved: Path
) -> None:
    made = romou.Decoder.load(saved)
    made._model.tokenizer = content
    with pytest.raises(error, match=reason):
        made.tokens_of(PROMPT)


def test_errors_come_before_anything_is_compiled(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(decoder(SHAPE), model)
    monkeypatch.setattr("romou.api.decoder.compile_one", None)

    def said(code: int = 2) -> str:
        result = CliRunner().invoke(main, ["generate", str(model), "--prompt", PROMPT])
        assert result.exit_code == code
        return " ".join(result.stderr.split())

    assert "the decoder has no tokenizer.json" in said()
    (tmp_path / "tokenizer.json").mkdir()
    assert f"{tmp_path}/tokenizer.json cannot be read: is no regular file" in said(1)
    (tmp_path / "tokenizer.json").rmdir()
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file())
    without: Any = None
    monkeypatch.setitem(sys.modules, "tokenizers", without)
    assert "text needs the package tokenizers" in said()
    assert "pip install 'romou[text]'" in said()
    for wrong in (3, b"ab"):
        with pytest.raises(UsageError, match="must be a text"):
            romou.Decoder.load(saved).tokens_of(wrong)  # type: ignore[arg-type]
