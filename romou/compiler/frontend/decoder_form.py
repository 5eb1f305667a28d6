"""The names and sizes of a language model's decoder, and what its inputs hold in each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from romou.base.schema import Range

_Size = Annotated[int, Range(1, 2**31 - 1)]


@dataclass(frozen=True, kw_only=True)
class DecoderForm:
    """Names and sizes of a decoder's two models: for one token, and for a chunk of a prompt.

    inputs: names of the inputs that are no caches.
    state: name of a past cache -> name of the present one.
    row: name of the input that selects the row whose logits are wanted. With padding on the left, it is the last one.
    token: name of the output that has the most likely token.
    words: number of words that token ids select from: of the table, or of the logits. None if both are open.
    length: tokens that a cache has room for.
    chunk: tokens of a prompt in one run.
    is_left_padded: whether tokens are the last entries of a cache, and of the first chunk. Else they are the first.
    """

    inputs: tuple[str, ...]
    state: dict[str, str]
    row: str
    token: str
    words: _Size | None
    length: _Size
    chunk: _Size
    is_left_padded: bool = False

    def shapes(self, rows: int, caches: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each input of the model for `rows` tokens. Caches have the given shapes."""
        of = {"input_ids": (1, rows), "position_ids": (1, rows), "attention_mask": (1, self._mask(rows))}
        shapes: dict[str, tuple[int, ...]] = {name: of.get(name, ()) for name in self.inputs}
        return {**shapes, **caches, **({self.row: (1,)} if self._has_row(rows) else {})}

    def ends(self, count: int) -> Sequence[int]:
        """Return where the chunks of a prompt end.

        The first chunk is padded on the left. Without such padding, the last one may read tokens once more.
        """
        if self.is_left_padded:
            return range((count - 1) % self.chunk + 1, count + 1, self.chunk)
        return [*range(self.chunk, count, self.chunk), count]

    def values(self, ids: Sequence[int], begin: int, rows: int) -> dict[str, np.ndarray]:
        """Return the inputs that are no caches, of int64, for tokens after `begin` others, padded to `rows`."""
        padding, end = rows - len(ids), begin + len(ids)
        if self.is_left_padded:
            values = {
                "input_ids": np.pad(ids, (padding, 0)),
                "attention_mask": np.arange(self._mask(rows)) >= self._mask(rows) - end,
                "position_ids": np.maximum(np.arange(begin - padding, end), 0),
            }
        else:
            values = {
                "input_ids": np.pad(ids, (0, padding)),
                "attention_mask": np.arange(self.length) < end,
                "position_ids": np.minimum(np.arange(begin, begin + rows), self.length - 1),
            }
        inputs = {name: values[name][None].astype(np.int64) for name in self.inputs}
        if self._has_row(rows):
            inputs[self.row] = np.array([len(ids) - 1])
        return inputs

    def _mask(self, rows: int) -> int:
        """Return the number of elements of the mask, which is of the tokens in a cache, or also of new ones."""
        return self.length + rows if self.is_left_padded else self.length

    def _has_row(self, rows: int) -> bool:
        return rows > 1 and not self.is_left_padded
