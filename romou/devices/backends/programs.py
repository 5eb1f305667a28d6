"""A model's programs on one device: compiled or loaded together before the first run, and kept on disk after it."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import hashlib
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from tvm_patches.runtime import global_function

logger = logging.getLogger("romou")
# The start of this note in program_cache.cc.
_KEEPS_NONE = "compiled programs are not kept"
_told: set[str] = set()
_is_keeping: contextvars.ContextVar[bool] = contextvars.ContextVar("is_keeping", default=False)


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Cache the programs of kernels while a model is built or loaded, and load them from the cache.

    Candidates of a search are built outside of this context.
    """
    before = _is_keeping.set(True)
    try:
        yield
    finally:
        _is_keeping.reset(before)


def is_keeping() -> bool:
    """Return whether `keeping` is active in this thread. Threads do not inherit it from the thread that starts them."""
    return _is_keeping.get()


def kept(compiler: str, depends: Sequence[Any], what: str, compile_now: Callable[[], bytes]) -> bytes:
    """Return the result of `compile_now`, or its copy on disk. A damaged copy is replaced, with a warning.

    compiler: its name.
    depends: everything that the result depends on, as JSON-ready data.
    what: the program for a person.
    """
    find, keep = (global_function(f"romou.programs.{name}", allow_missing=True) for name in ("find", "keep"))
    if find is None or keep is None:
        return compile_now()
    key = hashlib.sha256(json.dumps([compiler, *depends]).encode()).hexdigest()
    cached, *notes = find(compiler, key, what)
    warn_of(notes)
    if cached is not None:
        return bytes(cached)
    code = compile_now()
    keep(compiler, key, code)
    return code


def warn_of(notes: Iterable[str]) -> None:
    """Warn of problems with kept programs.

    A folder that keeps none is reported once in a process, because all its models meet the same problem.
    """
    for line in notes:
        if line not in _told:
            logger.warning("%s", line)
        if line.startswith(_KEEPS_NONE):
            _told.add(line)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramReport:
    """The origin of a model's programs.

    seconds: until all of them were ready.
    notes: problems with kept programs, a line each.
    keep_s: the time to write them, after the first run.
    """

    cached: int
    compiled: int
    seconds: float
    notes: tuple[str, ...] = ()
    keep_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.cached} loaded from the cache, {self.compiled} compiled, in {self.seconds:.2f} s"


# Compile (modules, number of the device, folder, threads) and keep the programs in the folder. Never raises an error of
# the driver.
CompileApart: TypeAlias = Callable[[list[bytes], int, str, int], None]


class Programs:
    """The programs of `library` on device number `index`.

    A driver's compiler is slow, so its programs are kept for the model's next start.

    prepare, keep, folder: functions of the device's runtime, on this machine or behind a connection.
    missing, module_bytes: the same, on this machine only. None elsewhere, or if the runtime lacks them.
    compile_as_one: the same. It compiles all kernels that are not in the cache as one program, which is not cached.
        It returns False if a process ended while it compiled that program. None if each kernel is a program.
    threads: compiling threads. 0 for one on each core.
    is_kept: False if the driver must not be given binaries.
    crashes: whether the driver's compiler is known to crash.
    """

    def __init__(
        self,
        library: Any,
        index: int,
        *,
        prepare: Callable[[Any, int, str, int], str],
        keep: Callable[[Any, int, str], str],
        folder: Callable[[], str],
        missing: Callable[[Any, int, str], str] | None = None,
        module_bytes: Callable[[Any], Sequence[bytes]] | None = None,
        compile_as_one: Callable[[Any, int, str], bool] | None = None,
        threads: int = 0,
        is_kept: bool = True,
        crashes: bool = False,
    ) -> None:
        self._library, self._index, self._threads = library, index, threads
        self._prepare, self._keep = prepare, keep
        self._folder = str(folder()) if is_kept else ""
        self._missing, self._module_bytes, self._compile_as_one = missing, module_bytes, compile_as_one
        self._crashes = crashes
        self._is_to_keep = False
        self.report: ProgramReport | None = None

    def prepare(self, compile_apart: CompileApart | None = None) -> None:
        """Make every program ready, from the cache if it is there. Warn of damaged entries.

        compile_apart: compiles in a separate process. It compiles programs missing from the cache, if the
        driver's compiler is known to crash or a process ended while it compiled one of them. A program that ends the
        separate process too is refused.

        Raises
        ------
        RuntimeError
            The driver refuses a program. The message names the kernel.
        """
        start = time.perf_counter()
        with contextlib.ExitStack() as stack:
            folder = self._folder
            compiles_as_one = self._compile_as_one or (lambda *_: True)
            has_ended = not compiles_as_one(self._library, self._index, folder)
            if compile_apart is not None and self._missing is not None and self._module_bytes is not None:
                if self._crashes and not folder:
                    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="romou-programs-"))
                status = json.loads(str(self._missing(self._library, self._index, folder)))
                if has_ended or status["doubtful"] or (self._crashes and status["missing"]):
                    modules = [bytes(module) for module in self._module_bytes(self._library)]
                    compile_apart(modules, self._index, folder, self._threads)
            self._prepare_here(folder, start)

    def _prepare_here(self, folder: str, start: float) -> None:
        report = json.loads(str(self._prepare(self._library, self._index, folder, self._threads)))
        self.report = ProgramReport(
            cached=report["cached"],
            compiled=report["compiled"],
            seconds=time.perf_counter() - start,
            notes=tuple(report["notes"]),
        )
        warn_of(self.report.notes)
        self._is_to_keep = bool(self._folder) and self.report.compiled > 0

    def keep(self) -> None:
        """Write compiled programs to the cache, once.

        Call this after the first launch, because some drivers finish compiling in it.
        """
        if self._is_to_keep and self.report is not None:
            self._is_to_keep = False
            report = json.loads(str(self._keep(self._library, self._index, self._folder)))
            self.report = dataclasses.replace(self.report, keep_s=report["seconds"])
            warn_of(report["notes"])
