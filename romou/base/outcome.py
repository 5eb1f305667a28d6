"""Outcomes of a trial, as data."""

from __future__ import annotations

import enum


class Outcome(str, enum.Enum):
    """The end of a candidate's trial. The value is the text in records."""

    OK = "ok"  # ran, right, timed
    INVALID = "invalid"  # the schedule template refuses the config
    BUILD_ERROR = "build_error"  # TVM or the host compiler failed, took too long, or took the process down
    RUN_ERROR = "run_error"  # the driver or the kernel failed while loading or running
    TIMEOUT = "timeout"  # loading, running and checking took longer than run_timeout_s
    UNSTABLE = "unstable"  # right at first, but its output changed when it was run again and again
    WRONG_RESULT = "wrong_result"  # ran, but differs from the reference

    __str__ = str.__str__
