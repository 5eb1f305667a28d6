"""Hides TVM's C++ notes for developers, which it prints on every save or import.

Known notes: "Scope Saving" for each memory scope of a saved Relax module (vm/executable.cc), "Fast mode segfaults" for
each gather that the ONNX importer emits (topi/transform.h). Drop this when both are gone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Hold back stderr of the process, C++ included, and print it only if the block raises.

    Use it neither around code that shows progress nor in several threads at once: the whole process shares its stderr.
    """
    sys.stderr.flush()
    try:
        saved = os.dup(2)
    except OSError:  # no stderr at all: nothing to keep quiet
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            sys.stderr.flush()
            held.seek(0)
            os.write(saved, held.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
