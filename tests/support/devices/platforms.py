"""The OpenCL platforms, each with a different compiler, that kernels are tested on in addition to the default one."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path

import pytest

import check_kernels
from support.servers import forked

LIST = (
    "import json, tvm; print(json.dumps([d['platform'] for d in"
    " json.loads(str(tvm.get_global_func('romou.opencl.devices')()))]))"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Platform:
    """An OpenCL platform and its requirements.

    title: OpenCL's name of it
    package: the package that installs it
    variables: environment variables that it needs to offer a device
    library: the file to open in place of the system's loader. The platform is installed if this file exists.
    has_fp16: whether it computes in fp16
    left_out: options of tests/stress/check_kernels.py that leave out unsupported configs
    """

    name: str
    title: str
    package: str
    variables: tuple[tuple[str, str], ...] = ()
    library: str | None = None
    has_fp16: bool = False
    left_out: tuple[str, ...] = ()

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a process that has this platform's device as its first one."""
        return {**os.environ, **dict(self.variables), "ROMOU_OPENCL_DEVICE": self.title, **more}

    def require(self, config: pytest.Config) -> None:
        """Skip the test if the platform is missing. Fail it if all platforms are required, as in scripts/test.sh."""
        if Path(self.library).exists() if self.library else self.title in _platforms():
            return
        missing = f"no OpenCL platform {self.title!r}: {self.package}"
        if config.getoption("--all-platforms"):
            pytest.fail(missing)
        pytest.skip(missing)


# Optimised PoCL kernels are run by the tests of models and of candidates. Here they would take three times as long.
_PLAIN = (("ROMOU_OPENCL_BUILD_OPTIONS", "-cl-opt-disable"),)
POCL = Platform(
    name="pocl", title="Portable Computing Language", package="apt-get install pocl-opencl-icd", variables=_PLAIN
)
INTEL = Platform(name="intel", title="Intel(R) OpenCL", package="pip install 'romou[cpu]'", has_fp16=True)
RUSTICL = Platform(
    name="rusticl",
    title="rusticl",
    package="apt-get install mesa-opencl-icd",
    variables=(("RUSTICL_ENABLE", "llvmpipe"),),
    # Mesa 22.3 takes minutes to compile a kernel of a few hundred unrolled lines (more than eight minutes for one that
    # Intel's compiler finishes in 15 s).
    left_out=("--avoid", "unroll=window"),
)
# It has no compiler: it interprets LLVM's instructions one by one.
OCLGRIND = Platform(
    name="oclgrind", title="Oclgrind", package="apt-get install oclgrind", library=check_kernels.OCLGRIND
)


@functools.cache
def _platforms() -> list[str]:
    """Return the platforms that have a device, listed in a process with the environment that each of them needs."""
    done = forked.run("-c", LIST, env={**os.environ, **dict(RUSTICL.variables)})
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))
