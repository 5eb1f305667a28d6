"""Mesa's compilers for mobile GPUs, if they are installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from romou.base.errors import BuildError
from romou.devices.mobile_compilers import (
    KernelStatistics,
    MobileCompilersMissingError,
    compile_all,
    find_compilers,
    mobile_gpu,
)
from romou.devices.mobile_compilers.mesa import OLDEST

Answers = list[list[KernelStatistics] | BuildError]
# Mesa's answers of this session: compiling takes seconds.
_compiled: dict[tuple[str, str], list[KernelStatistics] | BuildError] = {}


@pytest.fixture(scope="session")
def compilers() -> Path:
    try:
        return find_compilers()
    except MobileCompilersMissingError as error:
        pytest.skip(
            f"NOT TESTED, the mobile compilers are missing: {str(error).splitlines()[0]};"
            " `romou setup mobile-compilers` says why it fails"
        )


@pytest.fixture(scope="session")
def compile_once(compilers: Path) -> Callable[[Sequence[str], str], Answers]:
    """Return `compile_all` that compiles each text once."""

    def compile_missing(sources: Sequence[str], gpu: str) -> Answers:
        missing = [source for source in dict.fromkeys(sources) if (source, gpu) not in _compiled]
        folder = compilers if mobile_gpu(gpu).mesa == OLDEST else None
        answers = compile_all(missing, gpu, folder=folder) if missing else []
        _compiled.update({(source, gpu): answer for source, answer in zip(missing, answers, strict=True)})
        return [_compiled[source, gpu] for source in sources]

    return compile_missing
