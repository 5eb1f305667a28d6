"""The outputs of a run, by position and by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from romou.base.errors import unknown_name


class Outputs(list[np.ndarray]):
    """Arrays that a model returned, in the model's order.

    `outputs[0]` and `outputs["logits"]` are an output. `dict(outputs)` maps names to arrays. Shapes and dtypes are the
    ONNX model's.

    Parameters
    ----------
    names
        Distinct names of the outputs, in order.
    arrays
        One for each name.

    Raises
    ------
    UsageError
        By indexing, for a name that the model does not return. The hint names the nearest one.
    """

    def __init__(self, names: Sequence[str], arrays: Sequence[np.ndarray]) -> None:
        super().__init__(array for _, array in zip(names, arrays, strict=True))
        self.names = tuple(names)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key not in self.names:
            raise unknown_name("output", key, self.names)
        return super().__getitem__(self.names.index(key))

    def keys(self) -> tuple[str, ...]:
        """Return the names, in order."""
        return self.names

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.names, list(self))
