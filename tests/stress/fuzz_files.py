#!/usr/bin/env python3
"""Reads thousands of damaged files of each kind that others write. Each must be read, or end in the one error of its kind.

    python tests/stress/fuzz_files.py                        3,000 cases of each kind, of seed 0
    python tests/stress/fuzz_files.py --kind t4 --cases 200 --first 400 --keep folder      cases 400 to 599; files at fault are kept

Bits are flipped, slices cut out, doubled and put elsewhere, files cut off; keys are lost, renamed and doubled; values become
others, of other types, huge, nested deep, NaN, or texts that no encoding has; gzip is damaged, or unpacks to gigabytes. Cases run
in child processes, which survive a crash of one. The exit code is 1 if any was a traceback, another error, a crash, or took longer
than five seconds of processor time.
"""  # noqa: E501

from __future__ import annotations

import functools
import gzip
import logging
import random
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from child_pool import in_children
from file_kinds import KINDS, Kind, packed
from romou.base.errors import RomouError
from romou.runtime.workers.child import ChildCrashError, ChildProcess, ChildTimeoutError
from romou.tuner.measure import ChildBugError

READ, REFUSED = "read", "refused"
FAULTS = OTHER, UNCLEAR, CRASH, OVER_TIME = "another error", "unclear error", "crash", "over time"
# Processor time of a case, and the wall time of a batch.
LIMIT_S, BATCH_LIMIT_S = 5.0, 300.0
_BATCH = 100
_MOST_MEMORY_BYTES = 8 * 2**30
_LONGEST_ERROR = 2000
_ODD_BYTES = (b"\0", b"\xff\xfe", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\n", b"\r\n", b"#")
_ODD_VALUES: tuple[str, ...] = (
    "null",
    "true",
    "false",
    "-1",
    "0",
    "1",
    "3",
    "1.5",
    "-0.0",
    "1e308",
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "1" + "0" * 400,
    "9223372036854775808",
    "2147483648",
    "4294967296",
    "1e-320",
    '""',
    '"x"',
    '"../../x"',
    '"/etc/passwd"',
    '"a\\u0000b"',
    '"\\ud800"',
    '"\\u2028"',
    '"\U0001f600"',
    '"\u0130"',
    '"' + "x" * 5000 + '"',
    "[]",
    "{}",
    "[[]]",
    '{"": {}}',
    "[" * 70 + "]" * 70,
    "[" * 20000,
    '{"a":' * 2000,
    "[" + "1," * 3000 + "1]",
    '["ok", "ok"]',
    '"ok"',
    "[-1, 0]",
    "[1e-300]",
)


@dataclass(frozen=True)
class Result:
    """The outcome of a case."""

    kind: str
    number: int
    outcome: str
    detail: str


def case(kind: Kind, seed: int, number: int) -> bytes:
    """Return the file of a case: a right one with one to three damages."""
    rng = random.Random(f"{kind.name} {seed} {number}")
    content = kind.content()
    if not kind.is_text or (kind.is_packed and rng.random() < 0.3):
        return _damaged_bytes(packed(kind, content), rng)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice((_damaged_bytes, _damaged_value, _damaged_value, _damaged_key))(content, rng)
    return packed(kind, content)


def _damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) + 1)
    end = min(len(content), start + rng.choice((1, 2, 8, 64, 1000)))
    piece, other = content[start:end], rng.randrange(len(content) + 1)
    at = rng.randrange(len(content) or 1)
    damages: list[Callable[[], bytes]] = [
        lambda: content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :],
        lambda: content[:start] + content[end:],
        lambda: content[:start],
        lambda: content[:start] + piece + piece + content[end:],
        lambda: content[:other] + piece + content[other:],
        lambda: content[:start] + rng.randbytes(len(piece)) + content[end:],
        lambda: content[:start] + rng.choice(_ODD_BYTES) + content[start:],
        lambda: content + _bomb(rng.choice((3, 10, 29))),
        lambda: content * 2,
        lambda: b"",
    ]
    return rng.choice(damages)() if content else b"x"


@functools.cache
def _bomb(bits: int) -> bytes:
    """Return the gzip of 2 ** `bits` zeros."""
    return gzip.compress(bytes(1 << bits), compresslevel=1)


# A value of JSON that holds no other, or an empty one.
_VALUE = re.compile(rb'(?<=[:,\[ ])("(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|\[\]|\{\})(?=\s*[,\]}])')
_PAIR = re.compile(
    rb'"(?:[^"\\]|\\.)*"\s*:\s*(?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|\[[^\[\]{}]*\]|\{[^{}]*\})'
)


def _damaged_value(content: bytes, rng: random.Random) -> bytes:
    """Return the content with another value in a value's place, or with a whole list or object replaced."""
    places = [match.span() for match in _VALUE.finditer(content)] + list(_containers(content, rng))
    if not places:
        return content
    start, end = rng.choice(places)
    other = rng.choice(places)
    value = content[other[0] : other[1]] if rng.random() < 0.3 else rng.choice(_ODD_VALUES).encode()
    return content[:start] + value + content[end:]


def _containers(content: bytes, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Yield places of some lists and objects."""
    opened: list[int] = []
    for match in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', content):
        if match[0] in (b"[", b"{"):
            opened.append(match.start())
        elif match[0] in (b"]", b"}") and opened and rng.random() < 0.5:
            yield opened.pop(), match.end()


def _damaged_key(content: bytes, rng: random.Random) -> bytes:
    pairs = list(_PAIR.finditer(content))
    if not pairs:
        return content
    pair, other = rng.choice(pairs), rng.choice(pairs)
    key, _, value = pair[0].partition(b":")
    renamed = rng.choice((b'"x"', b'""', b'"schema"', b'"../x"', other[0].partition(b":")[0]))
    changed = rng.choice(
        (
            b'"gone": 0',
            pair[0] + b", " + pair[0],
            pair[0] + b", " + key + b": " + rng.choice(_ODD_VALUES).encode(),
            renamed + b":" + value,
            other[0],
            key + b":" + other[0].partition(b":")[2],
        )
    )
    return content[: pair.start()] + changed + content[pair.end() :]


def read_cases(name: str, seed: int, numbers: Sequence[int]) -> list[tuple[int, str, str]]:
    """Read the files of cases in a child process. Return (number, outcome, detail) of each."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    logging.getLogger("romou").setLevel(logging.CRITICAL)
    kind, results = KINDS[name], []
    for number in numbers:
        content = case(kind, seed, number)
        with tempfile.TemporaryDirectory(prefix="romou-fuzz-files-") as folder:
            path = Path(folder, "in", kind.name)
            path.parent.mkdir()
            path.write_bytes(content)
            started = time.process_time()
            outcome, detail = _outcome(kind, path)
            seconds = time.process_time() - started
            left = sorted(each.name for each in Path(folder).iterdir())
        if left != ["in"]:
            outcome, detail = OTHER, f"it wrote outside of its folder: {left}"
        if seconds > LIMIT_S:
            outcome, detail = OVER_TIME, f"{seconds:.1f} s; {detail}"
        results.append((number, outcome, detail))
    return results


def _outcome(kind: Kind, path: Path) -> tuple[str, str]:
    try:
        kind.read(path)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if kind.error is None or not isinstance(error, kind.error):
            import traceback

            return OTHER, "".join(traceback.format_exception(error)[-4:])
        return (REFUSED if _is_clear(error) else UNCLEAR), text
    return READ, ""


def _is_clear(error: RomouError) -> bool:
    """Return whether an error is one message for a person, and no traceback in disguise."""
    text = str(error)
    words = ("Traceback", "InternalError", "KeyError", "TypeError", "AttributeError", "IndexError")
    return bool(error.message.strip()) and len(text) <= _LONGEST_ERROR and not any(word in text for word in words)


def _run(child: ChildProcess, name: str, seed: int, numbers: Sequence[int]) -> list[Result]:
    """Return the outcomes of cases. A batch in which the process dies is halved until the case is found."""
    try:
        found = child.call(f"fuzz_files:{read_cases.__name__}", name, seed, list(numbers), timeout_s=BATCH_LIMIT_S)
        return [Result(name, *each) for each in found]
    except (ChildCrashError, ChildTimeoutError, ChildBugError) as error:
        if len(numbers) == 1:
            return [Result(name, numbers[0], OVER_TIME if isinstance(error, ChildTimeoutError) else CRASH, str(error))]
    middle = len(numbers) // 2
    return [result for half in (numbers[:middle], numbers[middle:]) for result in _run(child, name, seed, half)]


def fuzz(
    names: Sequence[str], numbers: range, *, seed: int = 0, jobs: int = 1, say: Callable[[str], Any] = lambda _: None
) -> list[Result]:
    """Return the outcome of each case of each kind, run in `jobs` child processes."""
    batches = [(name, numbers[at : at + _BATCH]) for name in names for at in range(0, len(numbers), _BATCH)]

    def run(child: ChildProcess, batch: tuple[str, range]) -> list[Result]:
        say(f"{batch[0]} {batch[1]}")
        return _run(child, batch[0], seed, batch[1])

    return [result for results in in_children("files", run, batches, jobs=jobs) for result in results]


@click.command()
@click.option("--kind", "names", type=click.Choice(list(KINDS)), multiple=True, help="Only these. [default: all]")
@click.option("--cases", type=click.IntRange(min=1), default=3000, show_default=True, help="Of each kind.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the first case.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Child processes at a time.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Folder for files at fault.")
def main(names: tuple[str, ...], cases: int, first: int, seed: int, jobs: int, keep: Path | None) -> None:
    """Print each case at fault and the number of cases for each kind and outcome."""
    started = time.monotonic()
    names = names or tuple(KINDS)
    results = fuzz(names, range(first, first + cases), seed=seed, jobs=jobs)
    faults = [result for result in results if result.outcome in FAULTS]
    for result in faults:
        print(f"{result.kind} {result.number}: {result.outcome}\n{result.detail}\n", flush=True)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            content = case(KINDS[result.kind], seed, result.number)
            (keep / f"{result.kind}-{seed}-{result.number}".replace(" ", "_")).write_bytes(content)
    for name in names:
        counts = Counter(result.outcome for result in results if result.kind == name)
        print(f"{name:16s} {', '.join(f'{count} {outcome}' for outcome, count in sorted(counts.items()))}")
    print(f"{cases} cases of each kind, seed {seed}: {len(faults)} at fault; {time.monotonic() - started:.0f} s")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
