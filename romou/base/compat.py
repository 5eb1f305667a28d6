"""Version checks of tvm_patches, raised as Romou's errors."""

from __future__ import annotations

from romou.base.errors import CompatError
from tvm_patches import compat
from tvm_patches.errors import VersionError


def check_versions() -> None:
    """Raise CompatError unless the TVM packages are the pinned pair and the runtimes were built for them."""
    try:
        compat.check_versions()
    except VersionError as error:
        raise CompatError(error.message, hint=error.hint, **error.fields) from error
