"""Derives numbers from curves.

These functions are pure: they touch no device and no file. Each returns one or more `Answer`, and none guesses.
"""

from archprobe.analysis.answer import Answer, answered, declined

__all__ = ["Answer", "answered", "declined"]
