"""Curves -> numbers, pure: no device, no file. Each function returns an `Answer` or several; none guesses."""

from archprobe.analysis.answer import Answer, answered, declined

__all__ = ["Answer", "answered", "declined"]
