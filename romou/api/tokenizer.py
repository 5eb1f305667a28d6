"""A decoder's tokenizer, which turns text into tokens and tokens into text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from romou.base.compat import optional_module
from romou.base.errors import ModelError, UsageError
from romou.base.files import read_file
from romou.base.foreign import refused
from romou.runtime.module.decoder_model import TOKENIZER

_HINT = "Take the file that belongs to the model."


def content_beside(model: object) -> bytes | None:
    """Return the content of the tokenizer's file beside an ONNX file, or None. ModelError if it cannot be read."""
    if not isinstance(model, str | Path) or not Path(model).is_file():
        return None
    path = Path(model).with_name(TOKENIZER)
    if not path.exists():
        return None
    with refused(ModelError, f"{path} cannot be read"):
        return read_file(path)


def tokenizer_of(content: bytes | None, words: int | None) -> Any:
    """Return the `tokenizers.Tokenizer` of a file's content.

    words: size of the model's vocabulary. None: unknown.

    Raises
    ------
    UsageError
        There is no file, or the package `tokenizers` is not installed.
    ModelError
        The file is damaged, or has tokens that the model lacks.
    """
    if content is None:
        raise UsageError(
            f"the decoder has no {TOKENIZER}, which turns text into tokens",
            hint="Put the model's beside the ONNX file and compile it again, or give tokens as numbers: 1,15,27.",
        )
    tokenizers = optional_module("tokenizers", "text needs the package tokenizers", "pip install 'romou[text]'")
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # the package raises Exception itself
        raise ModelError(f"{TOKENIZER} cannot be read: {error}", hint=_HINT) from error
    last = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if words is not None and last >= words:
        raise ModelError(
            f"{TOKENIZER} has the token {last}; the model's vocabulary has {words} words, 0 to {words - 1}",
            hint=_HINT,
            value=last,
            limit=words,
        )
    return tokenizer
