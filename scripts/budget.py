#!/usr/bin/env python3
"""Print the tokens of each room of `romou` beside those of the last tag.

    python scripts/budget.py            a line for each room
    python scripts/budget.py --keep     writes today's numbers to scripts/budget.json, which stands in for a missing tag

Tokens are those of Python's `tokenize`, without comments, line ends and indentation. A docstring is one token. A room
is at most two folders below `romou`: "cli", "compiler/operators".
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASELINE = ROOT / "scripts" / "budget.json"
_UNCOUNTED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}


def tokens(source: bytes) -> int:
    """Return the number of tokens of a Python file."""
    kinds = (token.type for token in tokenize.tokenize(io.BytesIO(source).readline))
    return sum(kind not in _UNCOUNTED | {tokenize.ENDMARKER} for kind in kinds)


def by_room(files: Iterable[tuple[str, bytes]]) -> dict[str, int]:
    """Return room -> tokens of its files. files: path below the checkout, source."""
    total: Counter[str] = Counter()
    for path, source in files:
        total["/".join(Path(path).parts[1:-1][:2]) or "romou"] += tokens(source)
    return dict(total)


def _today() -> dict[str, int]:
    paths = sorted((ROOT / "romou").rglob("*.py"))
    return by_room((str(path.relative_to(ROOT)), path.read_bytes()) for path in paths)


def _before() -> tuple[str, dict[str, int]]:
    """Return the last tag and its tokens, or those of the kept file if there is no tag."""
    git = ["git", "-C", str(ROOT)]
    described = subprocess.run([*git, "describe", "--tags", "--abbrev=0"], capture_output=True, text=True, check=False)
    tag = described.stdout.strip()
    if described.returncode or not tag:
        return "kept", json.loads(BASELINE.read_text(encoding="utf-8"))
    archive = subprocess.run([*git, "archive", tag, "romou"], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        files = [(each.name, members.extractfile(each)) for each in members if each.name.endswith(".py")]
        return tag, by_room((name, file.read()) for name, file in files if file is not None)


def table(name: str, before: dict[str, int], today: dict[str, int]) -> str:
    """Return a line for each room and one for all."""
    rooms = sorted(before.keys() | today.keys(), key=lambda room: (-today.get(room, 0), room))
    counts = [(room, before.get(room, 0), today.get(room, 0)) for room in rooms]
    counts.append(("all", sum(before.values()), sum(today.values())))
    lines = [f"{'tokens':<28} {name:>9} {'today':>9} {'change':>9}"]
    return "\n".join([*lines, *(f"{room:<28} {old:>9,} {new:>9,} {new - old:>+9,}" for room, old, new in counts)])


def main() -> None:
    """Print the table, or keep today's numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keep", action="store_true", help="write today's numbers to scripts/budget.json")
    if parser.parse_args().keep:
        BASELINE.write_text(json.dumps(_today(), indent=0, sort_keys=True) + "\n", encoding="utf-8")
    else:
        print(table(*_before(), _today()))


if __name__ == "__main__":
    main()
