"""The errors that this package raises on purpose. Romou raises its own `CompatError` and `ModelError` from them."""

from __future__ import annotations

from typing import Any


class PatchError(Exception):
    """Base of the errors with a message for a person.

    message: one self-contained text.
    hint: what to do next.
    fields: values that a program may want to read.
    """

    def __init__(self, message: str, *, hint: str | None = None, **fields: Any) -> None:
        super().__init__(message if hint is None else f"{message}\n{hint}")
        self.message, self.hint, self.fields = message, hint, fields


class VersionError(PatchError):
    """The installed TVM, tvm-ffi and device runtimes do not belong together."""


class ImporterError(PatchError):
    """The ONNX importer cannot convert a node. The fields `operator` and `node` name it."""
