"""Results that show themselves in one line."""

from __future__ import annotations


class Headline:
    """Base of results whose repr is their class and `headline`, not all that they hold.

    A dataclass with this base takes `repr=False`.
    """

    @property
    def headline(self) -> str:
        """The result in a line."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.headline})"
