"""Makes numbers of curves. These functions are pure: no device, no file. Each returns an `Answer` or several, and none
guesses.
"""

from archprobe.analysis.answer import Answer, answered, declined

__all__ = ["Answer", "answered", "declined"]
