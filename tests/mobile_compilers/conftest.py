"""Mesa's compilers for mobile GPUs, if they are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from romou.devices.mobile_compilers import MobileCompilersMissingError, find_compilers


@pytest.fixture(scope="session")
def compilers() -> Path:
    try:
        return find_compilers()
    except MobileCompilersMissingError as error:
        pytest.skip(
            f"NOT TESTED, the mobile compilers are missing: {str(error).splitlines()[0]};"
            " `romou setup mobile-compilers` says why it fails"
        )
