"""Names, lines and errors of the text of one kernel."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from romou.base.errors import BuildError
from romou.devices.backends.vulkan.functions import BUILT_IN, DEFINITIONS

# Reserved names of GLSL that variables of kernels may have.
_WORDS = """active all asm attribute bool buffer case cast centroid class coherent common const default discard do double else enum extern external
false filter fixed flat float for goto half highp if image in inline input int interface invariant layout long lowp main max mediump min mix namespace
new noinline noise out output packed partition patch precise precision public readonly resource restrict return sample sampler shared short sizeof
smooth static struct subroutine superp switch template texture this true typedef uint uniform union unsigned using varying void volatile while
writeonly"""  # noqa: E501
_RESERVED = frozenset(_WORDS.split())


class Text:
    """The lines of a kernel's body so far, and the names in use."""

    def __init__(self, kernel_name: str) -> None:
        self.kernel_name = kernel_name
        self.names: dict[Any, str] = {}
        self.taken: set[str] = set()
        self.counts: dict[str, int] = {}
        self.lines: list[str] = []
        self.depth = 0

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def fail(self, what: str, hint: str = "Choose another config, or report the model.") -> NoReturn:
        raise BuildError(f"kernel {self.kernel_name}: GLSL cannot express {what}", hint=hint, kernel=self.kernel_name)

    def unique(self, wanted: str) -> str:
        base = re.sub(r"_{2,}", "_", re.sub(r"\W", "_", wanted)).removeprefix("gl_") or "value"
        if base in _RESERVED or base in DEFINITIONS or base in BUILT_IN.values() or base[0].isdigit():
            base += "_"
        name, count = base, self.counts.get(base, 0)
        while name in self.taken:
            count += 1
            name = f"{base.rstrip('_')}_{count}"
        self.taken.add(name)
        self.counts[base] = count
        return name

    def name(self, var: Any) -> str:
        if var not in self.names:
            self.names[var] = self.unique(str(var.name))
        return self.names[var]


def closed(text: str) -> str:
    """Return text as one operand: in parentheses if an operator is outside of all brackets."""
    if " " not in text:
        return text
    depth = 0
    for at in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(at, 0)
        if at == " " and depth == 0:
            return f"({text})"
    return text
