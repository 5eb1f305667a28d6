"""What to try next, within a budget, and how the user sees it."""

from romou.search.options import TuningOptions
from romou.search.progress import NoProgress, PlainProgress, Progress, TerminalProgress, terminal_progress
from romou.search.session import TuningSession
from romou.search.task_search import TaskResult
from romou.search.trial import Trial, TrialCallback

__all__ = [
    "NoProgress",
    "PlainProgress",
    "Progress",
    "TaskResult",
    "TerminalProgress",
    "Trial",
    "TrialCallback",
    "TuningOptions",
    "TuningSession",
    "terminal_progress",
]
