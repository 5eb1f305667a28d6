"""The search: chooses the configs to measure next within a budget, and shows its progress."""

from romou.tuner.search.progress import NoProgress, PlainProgress, Progress, TerminalProgress, progress_of
from romou.tuner.search.session import PriorKnowledge, SessionHooks, TuningSession
from romou.tuner.search.task_search import TaskResult
from romou.tuner.search.trial import Trial, TrialCallback
from romou.tuner.search.tuning_options import TuningOptions

__all__ = [
    "NoProgress",
    "PlainProgress",
    "PriorKnowledge",
    "Progress",
    "SessionHooks",
    "TaskResult",
    "TerminalProgress",
    "Trial",
    "TrialCallback",
    "TuningOptions",
    "TuningSession",
    "progress_of",
]
