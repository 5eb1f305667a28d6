"""romou.Decoder: a language model that generates tokens, with its caches on the device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from romou.api.compile import compile_one
from romou.api.tokenizer import content_beside, tokenizer_of
from romou.api.tune import tune_one
from romou.base.arguments import whole_of
from romou.base.compat import check_versions
from romou.base.errors import ModelError, UsageError
from romou.compiler.frontend.decoder_graph import CachedModel
from romou.driver.options import CompileOptions, TuneOptions
from romou.driver.sizes.shapes import linked, made_of
from romou.runtime.module.decoder_model import DecoderModel
from romou.runtime.module.saved import load
from romou.runtime.module.stepper import Stepper

if TYPE_CHECKING:
    import onnx

    from romou.base.model_bytes import MemoryUse
    from romou.devices.targets import Target
    from romou.runtime.module.tuned_model import TunedModel


@dataclass(frozen=True, kw_only=True)
class Generated:
    """Tokens that follow a prompt.

    Parameters
    ----------
    tokens
        The tokens. The first one comes with the prompt.
    prompt
        Number of tokens of the prompt.
    prompt_s
        Seconds until the first token.
    tokens_s
        Seconds from the first token to the last.
    """

    tokens: tuple[int, ...]
    prompt: int
    prompt_s: float
    tokens_s: float

    @property
    def prompt_rate(self) -> float:
        """Tokens of the prompt a second."""
        return self.prompt / self.prompt_s

    @property
    def rate(self) -> float | None:
        """Generated tokens a second, without the first one. None if there is no other."""
        return (len(self.tokens) - 1) / self.tokens_s if len(self.tokens) > 1 else None


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """Draws a token by its logits, see `Decoder.generate`. temperature: 0 if none is drawn."""

    temperature: float
    top_k: int | None
    random: np.random.Generator

    @classmethod
    def checked(cls, temperature: float, top_k: int | None, seed: int) -> _Choice:
        """Return the choice that arguments describe. UsageError names a wrong one."""
        if not isinstance(temperature, (int, float)) or not 0 <= temperature < math.inf:
            raise UsageError(f"temperature={temperature!r}: must be a number from 0 on", option="temperature")
        most = None if top_k is None else whole_of("top_k", top_k, lowest=1)
        random = np.random.default_rng(whole_of("seed", seed, lowest=0))
        return cls(temperature=float(temperature), top_k=most, random=random)

    def __call__(self, logits: np.ndarray) -> int:
        """Return a token."""
        likely = np.arange(len(logits))
        if self.top_k is not None and self.top_k < len(logits):
            # A sort of all words takes longer than a run.
            likely = np.argpartition(-logits, self.top_k - 1)[: self.top_k]
        weights = np.exp((logits[likely].astype(np.float64) - float(logits.max())) / self.temperature)
        return int(self.random.choice(likely, p=weights / weights.sum()))


class Decoder:
    """A decoder of a language model, compiled twice: for one token, and for a chunk of a prompt.

    Both are one library, with the weights on the device once. They share the caches of keys and values, which stay
    there as well.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or "bundled:decoder". A tokenizer.json beside the file makes tokens of text. Its
        inputs are `input_ids`, and `attention_mask` or `position_ids` if it has them. Its caches are read and written
        by GroupQueryAttention, or it appends to them, as optimum exports it. Such caches are copied in each run, and
        onnxruntime checks that the model's positions do not follow from their length.
    length
        Tokens that the caches have room for. None: as many as the model says, or 2048 if it leaves that open.
    chunk
        Tokens of the prompt that are read in one run.
    trials
        Candidates to measure in a search, as in `romou.tune`. 0 compiles with default schedules.
    target, device
        As in `romou.compile`. The device is one of this machine.
    options
        Other options of `romou.compile`, or of `romou.tune` if there are trials, such as the precision.

    Raises
    ------
    UsageError
        A wrong argument.
    ModelError
        The model has no caches, inputs that a decoder does not know, or positions that follow from the length of its
        caches; or as for `romou.compile`.
    """

    def __init__(
        self,
        model: onnx.ModelProto | str | Path,
        *,
        length: int | None = None,
        chunk: int = 32,
        trials: int = 0,
        target: Target | str | Mapping[str, object] = "opencl",
        device: int | str | None = None,
        **options: Any,
    ) -> None:
        room = None if length is None else whole_of("length", length, lowest=1)
        cached = CachedModel.of(model, room, whole_of("chunk", chunk, lowest=1))
        check_versions()
        options |= {"target": target, "device": device}
        variants = [cached.for_rows(count) for count in dict.fromkeys((1, cached.form.chunk))]
        if trials:
            made, _ = made_of(variants, TuneOptions.from_dict({**options, "trials": trials}, "tune"), tune_one)
        else:
            made, _ = made_of(variants, CompileOptions.from_dict(options, "compile"), compile_one)
        models, memory = linked(made)
        self._start(DecoderModel(models, memory=memory, form=cached.form, tokenizer=content_beside(model)))

    @classmethod
    def load(cls, path: str | Path, *, device: int | str = 0) -> Decoder:
        """Return a decoder that `save` wrote. Nothing is compiled.

        The library is code that runs with your rights: trust its source.

        Parameters
        ----------
        path
            The folder of the decoder.
        device
            The device of this machine that runs it, as in `romou.load`.

        Raises
        ------
        UsageError
            A wrong argument.
        ModelError
            The folder holds no decoder, or a damaged one, or its library does not load here.
        DeviceError
            No such device is attached.
        """
        model = load(path, device=device)
        if not isinstance(model, DecoderModel):
            raise ModelError(f"{path}: a saved model, but no decoder", hint="romou.load loads it.")
        decoder = cls.__new__(cls)
        decoder._start(model)
        return decoder

    def save(self, path: str | Path) -> Path:
        """Write the decoder to a folder, for `Decoder.load` and `romou generate`. An earlier one is replaced.

        Parameters
        ----------
        path
            The folder.

        Raises
        ------
        UsageError
            `path` exists and is no saved model, or cannot be written. Its earlier contents stay.
        BuildError
            The library cannot be linked.
        """
        return self._model.save(path)

    def _start(self, model: DecoderModel) -> None:
        """Make the caches."""
        self._model, self._form = model, model.form
        self.length, self.chunk = model.form.length, model.form.chunk
        self._one = Stepper(model.models[0], model.form.state)
        self._many = self._one if self.chunk == 1 else Stepper(model.models[1], model.form.state, self._one)

    @property
    def models(self) -> tuple[TunedModel, TunedModel]:
        """The models for one token and for a chunk. They are the same one if a chunk is one token."""
        return self._one.model, self._many.model

    @property
    def memory(self) -> MemoryUse:
        """Memory on the device of both models. Weights that they share, and the caches, are counted once."""
        memory = self._model.summary().memory
        assert memory is not None
        caches = sum(
            math.prod(shape) * np.dtype(dtype).itemsize
            for name, (shape, dtype) in self._one.model.inputs.items()
            if name in self._form.state
        )
        shared = caches if self._many is not self._one else 0
        return replace(memory, inputs=memory.inputs - shared)

    def generate(
        self,
        prompt: Sequence[int],
        tokens: int = 64,
        *,
        stop: Collection[int] = (),
        temperature: float = 0.0,
        top_k: int | None = None,
        seed: int = 0,
        on_token: Callable[[int], object] | None = None,
    ) -> Generated:
        """Return tokens that follow a prompt: the most likely ones, or drawn by their likelihood.

        Parameters
        ----------
        prompt
            Tokens, as numbers. A tokenizer makes them of words.
        tokens
            Number of tokens to generate, at most.
        stop
            Tokens that end the text. The first of them is the last token.
        temperature
            What logits are divided by before a token is drawn. 0: the most likely token is taken.
        top_k
            Draw from this many of the most likely tokens. None: from all.
        seed
            Seed of the draws.
        on_token
            Called with each token as soon as it is known.

        Raises
        ------
        UsageError
            The prompt is empty, `prompt` or `stop` is no list of tokens, a token is beyond the model's vocabulary, or
            the caches have no room. Or another argument is wrong.
        DeviceError
            The device failed.
        """
        tokens = whole_of("tokens", tokens, lowest=1)
        choose: Callable[[np.ndarray], int] = _Choice.checked(temperature, top_k, seed)
        output = self._model.logits
        if temperature == 0:  # the device finds the most likely token
            choose, output = (lambda token: int(token[0])), self._form.token
        ids, ends = self._tokens("prompt", prompt), self._tokens("stop", stop)
        if not ids:
            raise UsageError("the prompt is empty; give at least one token")
        if len(ids) + tokens - 1 > self.length:
            raise UsageError(
                f"{len(ids)} tokens and {tokens} more do not fit into caches of {self.length}",
                hint="Make the decoder with a larger `length`.",
            )
        tell = on_token or (lambda token: None)
        started = time.perf_counter()
        made = [choose(self._read(ids, output))]
        read = time.perf_counter()
        tell(made[0])
        while len(made) < tokens and made[-1] not in ends:
            made.append(choose(self._run(self._one, made[-1:], len(ids) + len(made) - 1, 1, output)))
            tell(made[-1])
        ended = time.perf_counter()
        return Generated(tokens=tuple(made), prompt=len(ids), prompt_s=read - started, tokens_s=ended - read)

    def tokens_of(self, text: str) -> list[int]:
        """Return the tokens of a text, by the tokenizer.json that is beside the model.

        Parameters
        ----------
        text
            The text of a prompt.

        Raises
        ------
        UsageError
            There is no tokenizer.json, the package `tokenizers` is not installed, or `text` is no text.
        ModelError
            The tokenizer is damaged, or has tokens that the model lacks.
        """
        if not isinstance(text, str):
            raise UsageError(f"text={text!r}: must be a text", option="text")
        return list(self._tokenizer.encode(text).ids)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens. It ends with U+FFFD if they end within a character.

        Parameters
        ----------
        tokens
            The tokens.

        Raises
        ------
        UsageError, ModelError
            As `tokens_of`, or `tokens` is no list of tokens.
        """
        return str(self._tokenizer.decode(self._tokens("tokens", tokens)))

    @cached_property
    def _tokenizer(self) -> Any:
        return tokenizer_of(self._model.tokenizer, self._form.words)

    def _tokens(self, name: str, tokens: Collection[int]) -> list[int]:
        """Return tokens as a list. UsageError if it is no collection of tokens that the model has."""
        if isinstance(tokens, str | bytes | Mapping) or not isinstance(tokens, Iterable):
            raise UsageError(f"{name}={tokens!r}: must be a list of tokens, which are whole numbers", option=name)
        ids = [whole_of(name, token, lowest=0) for token in tokens]
        words = self._form.words
        if words is not None and max(ids, default=0) >= words:
            raise UsageError(
                f"{name} has the token {max(ids)}; the model's vocabulary has {words} words, 0 to {words - 1}",
                hint="Take the tokenizer that belongs to the model.",
                option=name,
                value=max(ids),
                limit=words,
            )
        return ids

    def _read(self, ids: list[int], output: str) -> np.ndarray:
        """Read a prompt in chunks, and return the output for the token that follows."""
        for end in self._form.ends(len(ids)):
            begin = max(end - self.chunk, 0)
            values = self._run(self._many, ids[begin:end], begin, self.chunk, output)
        return values

    def _run(self, stepper: Stepper, ids: Sequence[int], begin: int, rows: int, output: str) -> np.ndarray:
        """Run `rows` tokens from position `begin` on: `ids` and padding. Return the output for the next token."""
        signature, values = stepper.model.inputs, self._form.values(ids, begin, rows)
        (found,) = stepper.run({name: each.astype(signature[name][1]) for name, each in values.items()}, output)
        return np.asarray(found).ravel()
