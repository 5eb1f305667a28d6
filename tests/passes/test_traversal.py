"""Rewriters that hold their callbacks do not outlive their last user, though tvm-ffi owns the callbacks."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from tvm import tirx

from romou.compiler.tir.traversal import rewriting, walking


class Renamer:
    """Holds functions that call its own methods, as passes do."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.rewrite = rewriting((tirx.Var, self._rename))
        self.walk = walking((tirx.Var, self._see))

    def _rename(self, variable: tirx.Var, _mutator: Any) -> tirx.Var:
        return tirx.Var(f"{variable.name}_new", "int32")

    def _see(self, variable: tirx.Var) -> None:
        self.seen.append(variable.name)


def test_methods_are_called_and_their_object_goes() -> None:
    renamer = Renamer()
    renamer.walk(renamer.rewrite(tirx.Var("x", "int32") + 1))
    assert renamer.seen == ["x_new"]
    gone = weakref.ref(renamer)
    gc.disable()
    try:
        del renamer
        assert gone() is None
    finally:
        gc.enable()
