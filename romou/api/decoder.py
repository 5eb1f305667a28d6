"""romou.Decoder: a language model that generates tokens, with its caches on the device."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from romou.api.compile import compile_one
from romou.api.tune import tune_one
from romou.base.arguments import whole_of
from romou.base.compat import check_versions
from romou.base.errors import UsageError
from romou.compiler.frontend.decoder_graph import CachedModel
from romou.driver.options import CompileOptions, TuneOptions
from romou.driver.sizes.link import linked
from romou.driver.sizes.shapes import made_of
from romou.runtime.module.stepper import Stepper

if TYPE_CHECKING:
    import onnx

    from romou.compiler.graph.memory.memory import MemoryUse
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


class Decoder:
    """A decoder of a language model, compiled twice: for one token, and for a chunk of a prompt.

    Both are one library, with the weights on the device once. They share the caches of keys and values, which stay
    there as well. Each step picks the most likely token.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or "bundled:decoder". Its inputs are `input_ids`, and `attention_mask` or
        `position_ids` if it has them. Its caches are read and written by GroupQueryAttention.
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
        The model has no caches, or inputs that a decoder does not know; or as for `romou.compile`.
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
        cached = CachedModel.of(model, None if length is None else whole_of("length", length, lowest=1))
        self.length = cached.length
        self.chunk = min(whole_of("chunk", chunk, lowest=1), self.length)
        self._names, self._state = cached.inputs, frozenset(cached.state)
        self._row, self._words = cached.row, cached.words
        check_versions()
        options |= {"target": target, "device": device}
        variants = [cached.for_rows(rows) for rows in dict.fromkeys((1, self.chunk))]
        if trials:
            made, _ = made_of(variants, TuneOptions.from_dict({**options, "trials": trials}, "tune"), tune_one)
        else:
            made, _ = made_of(variants, CompileOptions.from_dict(options, "compile"), compile_one)
        program = linked(made)
        self._memory = program.memory
        self._one = Stepper(program.models[0], cached.state)
        self._many = Stepper(program.models[1], cached.state, self._one) if self.chunk > 1 else self._one

    @property
    def models(self) -> tuple[TunedModel, TunedModel]:
        """The models for one token and for a chunk. They are the same one if a chunk is one token."""
        return self._one.model, self._many.model

    @property
    def memory(self) -> MemoryUse:
        """Memory on the device of both models. Weights that they share, and the caches, are counted once."""
        caches = sum(
            math.prod(shape) * np.dtype(dtype).itemsize
            for name, (shape, dtype) in self._one.model.inputs.items()
            if name in self._state
        )
        shared = caches if self._many is not self._one else 0
        return replace(self._memory, inputs=self._memory.inputs - shared)

    def generate(self, prompt: Sequence[int], tokens: int = 64, *, stop: Collection[int] = ()) -> Generated:
        """Return the most likely tokens that follow a prompt.

        Parameters
        ----------
        prompt
            Tokens, as numbers. A tokenizer makes them of words.
        tokens
            Number of tokens to generate, at most.
        stop
            Tokens that end the text. The first of them is the last token.

        Raises
        ------
        UsageError
            The prompt is empty, `prompt` or `stop` is no list of tokens, a token is beyond the model's vocabulary, or
            the caches have no room.
        DeviceError
            The device failed.
        """
        tokens = whole_of("tokens", tokens, lowest=1)
        ids, ends = self._tokens("prompt", prompt), self._tokens("stop", stop)
        if not ids:
            raise UsageError("the prompt is empty; give at least one token")
        if len(ids) + tokens - 1 > self.length:
            raise UsageError(
                f"{len(ids)} tokens and {tokens} more do not fit into caches of {self.length}",
                hint="Make the decoder with a larger `length`.",
            )
        started = time.perf_counter()
        made = [self._read(ids)]
        read = time.perf_counter()
        while len(made) < tokens and made[-1] not in ends:
            made.append(self._next(made[-1], len(ids) + len(made) - 1))
        ended = time.perf_counter()
        return Generated(tokens=tuple(made), prompt=len(ids), prompt_s=read - started, tokens_s=ended - read)

    def _tokens(self, name: str, tokens: Collection[int]) -> list[int]:
        """Return tokens as a list. UsageError if it is no collection of tokens that the model has."""
        if isinstance(tokens, str | bytes | Mapping) or not isinstance(tokens, Iterable):
            raise UsageError(f"{name}={tokens!r}: must be a list of tokens, which are whole numbers", option=name)
        ids = [whole_of(name, token, lowest=0) for token in tokens]
        if self._words is not None and max(ids, default=0) >= self._words:
            raise UsageError(
                f"{name} has the token {max(ids)}; the model's vocabulary has {self._words} words, 0 to"
                f" {self._words - 1}",
                hint="Take the tokenizer that belongs to the model.",
                option=name,
                value=max(ids),
                limit=self._words,
            )
        return ids

    def _read(self, ids: list[int]) -> int:
        """Read a prompt in chunks, and return the token that follows."""
        token = 0
        for begin in self._begins(len(ids)):
            part = ids[begin : begin + self.chunk]
            token = self._run(self._many, part, begin, self.chunk)
        return token

    def _begins(self, count: int) -> Iterator[int]:
        """Yield where chunks begin. The last one ends with the prompt, and may read tokens once more."""
        yield from range(0, count - self.chunk, self.chunk)
        yield max(count - self.chunk, 0)

    def _next(self, token: int, position: int) -> int:
        return self._run(self._one, [token], position, 1)

    def _run(self, stepper: Stepper, ids: Sequence[int], begin: int, rows: int) -> int:
        """Run `rows` tokens from position `begin` on: `ids` and padding. Return the next token."""
        signature = stepper.model.inputs
        values = {
            "input_ids": np.pad(ids, (0, rows - len(ids))),
            "attention_mask": np.arange(self.length) < begin + len(ids),
            "position_ids": np.minimum(np.arange(begin, begin + rows), self.length - 1),
        }
        inputs = {name: values[name][None].astype(signature[name][1]) for name in self._names}
        if rows > 1:
            inputs[self._row] = np.array([len(ids) - 1])
        (logits,) = stepper.run(inputs)
        return int(np.argmax(logits))
