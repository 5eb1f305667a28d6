"""GPUs by the name of a phone or of its system on a chip, from `socs.json`, in which every row has its source."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

_FILE = Path(__file__).with_name("socs.json")
# Makers that people put before a name, and a model number's variant after it: "SM8550-AB". "Xiaomi 12" is no name
# without its maker.
_LEFT_OUT = re.compile(r"\b(qualcomm|google|mediatek|samsung|galaxy|xiaomi(?= redmi))\b|-a[a-c]$")


@dataclass(frozen=True, kw_only=True)
class Soc:
    """A system on a chip.

    name: "Snapdragon 8 Gen 2".
    models: its model numbers, "SM8550".
    gpu: name of its GPU's file, "adreno740".
    phones: some phones that have it. "Galaxy S20 (Exynos)" also exists with another system on a chip.
    source: origin of this row.
    """

    name: str
    models: tuple[str, ...]
    gpu: str
    source: str
    phones: tuple[str, ...] = ()


@functools.cache
def known_socs() -> tuple[Soc, ...]:
    """Return all systems on a chip of the table."""
    rows = json.loads(_FILE.read_text(encoding="utf-8"))
    return tuple(
        Soc(
            name=row["name"],
            models=tuple(row["models"]),
            gpu=row["gpu"],
            source=row["source"],
            phones=tuple(row.get("phones", ())),
        )
        for row in rows
    )


def soc_called(text: str) -> Soc | None:
    """Return the system on a chip that has this name or model number, or is in the phone of this name, or None.

    "snapdragon 8 gen2", "sm8550-ab", "Redmi K70"       ->      Snapdragon 8 Gen 2
    """
    wanted = _folded(text)
    for soc in known_socs():
        if wanted in map(_folded, (soc.name, *soc.models, *soc.phones)):
            return soc
    return None


def phones_called(text: str) -> list[str]:
    """Return the names of a phone that exists with several systems on a chip.

    "samsung galaxy s20"       ->      Galaxy S20 (Snapdragon), Galaxy S20 (Exynos)
    """
    phones = [phone for soc in known_socs() for phone in soc.phones if "(" in phone]
    return [phone for phone in phones if _folded(phone.partition("(")[0]) == _folded(text)]


def _folded(text: str) -> str:
    words = _LEFT_OUT.sub("", text.lower().strip()).replace("+", "plus")
    return re.sub(r"[\W_]", "", words).removeprefix("snapdragon")
