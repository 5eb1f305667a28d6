"""The main loop of a child process: receive a call, run it, and send its value or its error.

nursery.py forks the process, child.py is the other end. A call is (function name, arguments, limit in seconds).
"""

from __future__ import annotations

import faulthandler
import math
import os
import pickle
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

from romou.base.errors import RomouError
from romou.base.interpreter import forget_import_path
from romou.runtime.workers.calls import resolve

# The parent kills the process at the limit. If the parent is gone, the kernel does so a little later: SIGALRM with its
# default action needs neither the interpreter lock nor a return from the driver.
_ALARM_GRACE_S = 5.0


def main(descriptor: int) -> None:
    """Serve calls until the parent closes its end."""
    forget_import_path()
    faulthandler.enable()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    connection = Connection(descriptor)
    connection.send(("ready", os.getpid()))
    while True:
        try:
            function, arguments, limit_s = connection.recv()
        except (EOFError, OSError):
            return
        signal.setitimer(signal.ITIMER_REAL, limit_s + _ALARM_GRACE_S if math.isfinite(limit_s) else 0)
        reply = _reply(function, arguments)
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            connection.send(reply)
        except (BrokenPipeError, ConnectionResetError):
            return


def _reply(function: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        value = resolve(function)(*arguments)
        pickle.dumps(value)
        return "value", value
    except RomouError as error:
        return "romou_error", error
    except Exception as error:
        return "bug", (type(error).__name__, str(error), traceback.format_exc())
