"""The compilers that answer for a mobile GPU: Mesa's, and the vendor's if the user has it (`vendor`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from romou.base.errors import BuildError, UsageError
from romou.devices.mobile_compilers.gpus import mobile_gpu
from romou.devices.mobile_compilers.mesa import TRIVIAL, MobileCompilersMissingError, mesa_version
from romou.devices.mobile_compilers.vendor import compile_by_vendor, vendor_compiler


def compilers_for(gpu: str) -> tuple[str | None, Path | None]:
    """Return the version of Mesa and the vendor's program that compile for a GPU. None for one that does not.

    gpu: a name of `GPUS`, or any other Mali, as "g78".

    Raises
    ------
    UsageError
        No GPU of that name, or ROMOU_ADRENO_COMPILER is no program.
    MobileCompilersMissingError
        Mesa's compilers have not been set up, and there is no vendor's.
    """
    program = vendor_compiler(gpu)
    try:
        return mesa_version(mesa=mobile_gpu(gpu).mesa), program
    except (UsageError, MobileCompilersMissingError):
        if program is None:
            raise
        return None, program


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """The compilers that count for a GPU. Counts of equal compilers can be compared.

    gpu: as in `compilers_for`.
    mesa: Mesa's version as Debian names it, or None.
    vendor: name and version of the vendor's compiler, or None.
    """

    gpu: str
    mesa: str | None = None
    vendor: str | None = None

    @classmethod
    def installed(cls, gpu: str) -> Compiler:
        """Return the compilers that answer for a GPU. Raise as `compilers_for`.

        The vendor's prints its version with the statistics of a kernel. If it refuses a trivial one, it does not count,
        and BuildError is raised if there is no other.
        """
        mesa, program = compilers_for(gpu)
        vendor = None
        if program is not None:
            (said,) = compile_by_vendor([("trivial", TRIVIAL)], gpu)
            if not isinstance(said, BuildError):
                vendor = said.compiler
            elif mesa is None:
                raise said
        return cls(gpu=gpu, mesa=mesa, vendor=vendor)

    def among(self, other: Compiler) -> Compiler:
        """Return those of the compilers whose counts `other` has too, of any version."""
        return replace(self, mesa=other.mesa and self.mesa, vendor=other.vendor and self.vendor)

    def __str__(self) -> str:
        names = [f"Mesa {self.mesa}"] * (self.mesa is not None) + [self.vendor] * (self.vendor is not None)
        return f"{' and '.join(map(str, names)) or 'none'} for {self.gpu}"
