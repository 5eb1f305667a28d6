"""Dumps: the module after each stage, as text files numbered in the order of the stages.

13-onnx-fold.txt
25-graph-split_weights.txt
kernel-NAME/58-vectorize_pointers.txt
kernel-NAME/77-source.txt
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from romou.base.environment import variable
from romou.base.errors import UsageError, unknown_name
from romou.compiler.stages import Stage

ALL = "all"
DEFAULT_FOLDER = "romou-dump"


@dataclass(frozen=True, kw_only=True)
class Dumps:
    """Files of the chosen stages in a folder.

    stages: names of the written stages.
    files: all files so far.
    """

    folder: Path
    stages: frozenset[str]
    files: list[Path] = field(default_factory=list)

    @classmethod
    def of(cls, names: str, folder: Path, known: Collection[str]) -> Dumps:
        """Return dumps of the named stages, separated by commas, or of "all".

        Raises
        ------
        UsageError
            A name is not in `known`. The message says the nearest one.
        """
        chosen = {name.strip() for name in names.split(",") if name.strip()}
        for name in sorted(chosen - {ALL}):
            if name not in known:
                raise unknown_name("stage", name, {*known, ALL})
        return cls(folder=folder, stages=frozenset(known if ALL in chosen else chosen))

    def write(self, stage: Stage, text: str, kernel: str = "") -> None:
        """Write the text after `stage`, in a folder of the function `kernel` if one is named."""
        if stage.name not in self.stages:
            return
        path = self.folder / (f"kernel-{kernel}" if kernel else "") / f"{stage.file_name}.txt"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise UsageError(f"cannot write the dump {path}: {error.strerror}", path=str(path)) from error
        if path not in self.files:
            self.files.append(path)


_CURRENT: ContextVar[Dumps | None] = ContextVar("dumps", default=None)


@contextlib.contextmanager
def dumping(dumps: Dumps) -> Iterator[Dumps]:
    """Write `dumps` while the context is open."""
    token = _CURRENT.set(dumps)
    try:
        yield dumps
    finally:
        _CURRENT.reset(token)


def without_dumps() -> contextlib.AbstractContextManager[Dumps]:
    """Write no dumps while the context is open. It is for kernels lowered only for inspection."""
    return dumping(Dumps(folder=Path(), stages=frozenset()))


def current_dumps(known: Collection[str]) -> Dumps | None:
    """Return the dumps of the open context or of ROMOU_DUMP, None without either. known: names of all stages."""
    names = variable("ROMOU_DUMP")
    if _CURRENT.get() is not None or names is None:
        return _CURRENT.get()
    return Dumps.of(names, Path(variable("ROMOU_DUMP_DIR") or DEFAULT_FOLDER), known)
