"""Compiled programs are kept: the next start loads them. Any fault in one costs a compilation and a warning, never a
wrong result.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm

import romou
from romou.base.environment import from_environment
from romou.base.errors import DeviceError, UsageError
from romou.devices.backends import base
from romou.devices.hardware.quirks import DriverRules
from support.devices import standin
from support.models.nodes import model_of
from support.servers.program_starts import CRASHES, KILLS, outputs_of, start, starts


def entries(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache.glob("*.program")}


def live_programs() -> int:
    return int(json.loads(str(tvm.get_global_func("romou.opencl.statistics")()))["live_programs"])


def test_a_folder_that_keeps_none_is_said_once(
    saved: Path, right: bytes, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each model of a run finds it anew."""
    cache.mkdir(parents=True, exist_ok=True)
    cache.chmod(0o777)
    with caplog.at_level(logging.WARNING, logger="romou"):
        notes = [start(saved, right).notes for _ in range(2)]
    assert notes[0] == notes[1]
    assert "others may write to" in notes[0][0]
    assert [record.message for record in caplog.records] == list(notes[0])


def test_the_second_start_compiles_nothing(saved: Path, right: bytes, cache: Path) -> None:
    first = start(saved, right)
    kept = entries(cache)
    second = start(saved, right)
    assert first.cached == 0 < first.compiled == len(kept)
    assert (second.cached, second.compiled, second.notes) == (first.compiled, 0, ())
    assert second.seconds < first.seconds
    assert entries(cache) == kept
    assert all(path.stat().st_mode & 0o077 == 0 for path in (cache, *cache.iterdir()))
    assert not [path for path in cache.iterdir() if path.suffix != ".program"]


def test_an_entry_is_described_by_its_hashes(saved: Path, right: bytes, cache: Path) -> None:
    """An entry has the format that other writers must follow: magic, key, kind, SHA-256 of these and the content,
    content.
    """
    start(saved, right)
    for name, content in entries(cache).items():
        head, digest, payload = content[:73], content[73:137], content[137:]
        assert head == b"ROMOUPC1" + name.removesuffix(".program").encode() + b"b"
        assert digest.decode() == hashlib.sha256(head + payload).hexdigest()


def entry(path: Path, kind: bytes, content: bytes) -> bytes:
    head = b"ROMOUPC1" + path.stem.encode() + kind
    return head + hashlib.sha256(head + content).hexdigest().encode() + content


DAMAGES: dict[str, tuple[Callable[[Path, bytes], bytes], str]] = {
    "flipped": (
        lambda path, other: path.read_bytes()[:-9] + bytes([path.read_bytes()[-9] ^ 1]) + path.read_bytes()[-8:],
        "is damaged",
    ),
    "kind": (lambda path, other: path.read_bytes()[:72] + b"r" + path.read_bytes()[73:], "is damaged"),
    "truncated": (lambda path, other: path.read_bytes()[: path.stat().st_size // 2], "is damaged"),
    "short": (lambda path, other: path.read_bytes()[:50], "is no whole entry"),
    "empty": (lambda path, other: b"", "is no whole entry"),
    "foreign": (lambda path, other: other, "belongs to another program"),
    "not the driver's": (
        lambda path, other: entry(path, b"b", b"no program at all"),
        "the driver does not take the kept program of",
    ),
}


def test_a_damaged_entry_costs_a_compilation_and_a_line(
    saved: Path, right: bytes, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(saved, right)
    for name, (damage, reason) in DAMAGES.items():
        whole = entries(cache)
        path, other = sorted(cache.glob("*.program"))[:2]
        path.write_bytes(damage(path, other.read_bytes()))
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="romou"):
            report = start(saved, right)
        assert (report.compiled, report.cached, len(report.notes)) == (1, len(whole) - 1, 1), name
        assert reason in report.notes[0], name
        assert [record.message for record in caplog.records] == list(report.notes), name
        assert entries(cache).keys() == whole.keys(), name
    assert start(saved, right).compiled == 0


def test_the_cache_keeps_to_its_limit_and_drops_what_was_used_longest_ago(
    saved: Path, right: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(saved, right)
    cache.joinpath("partial-1-0").write_bytes(b"of a killed process")
    os.utime(cache / "partial-1-0", (1, 1))
    old = []
    for number in range(3):
        old.append(cache / f"{number:064x}.program")
        old[-1].write_bytes(bytes(400_000))
        os.utime(old[-1], (number + 1, number + 1))
    for path in sorted(cache.glob("*.program"))[3:4]:
        path.unlink()
    monkeypatch.setenv("ROMOU_PROGRAM_CACHE_MB", "1")
    start(saved, right)
    sizes = sum(len(content) for content in entries(cache).values())
    assert sizes <= 1 << 20
    assert not old[0].exists()
    assert old[2].exists()
    assert not cache.joinpath("partial-1-0").exists()


def test_no_cache_where_others_may_write(saved: Path, right: bytes, cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    report = start(saved, right)
    assert "others may write to" in report.notes[0]
    assert entries(cache) == {}


def test_a_limit_of_zero_keeps_nothing(saved: Path, right: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROMOU_PROGRAM_CACHE_MB", "0")
    assert start(saved, right).notes == ()
    assert not cache.exists()
    monkeypatch.setenv("ROMOU_PROGRAM_CACHE_MB", "many")
    with pytest.raises(UsageError, match="ROMOU_PROGRAM_CACHE_MB='many': must be a whole number"):
        from_environment()


def test_kernels_are_one_program_if_a_program_costs_more_than_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that several kernels call is defined once."""
    monkeypatch.setattr(base, "rules_for", lambda facts: DriverRules(compiles_as_one=True))
    x = np.random.default_rng(0).random((16, 16), np.float32)
    model = romou.compile(
        model_of({"a": ("Exp", "x"), "b": ("Softmax", "a")}, {"x": x}),
        target="opencl -device=adreno640 -without=functions:native",
        device=0,
        verify=False,
    )
    texts = model.sources().values()
    before = live_programs()
    found = model.run({"x": x})
    assert live_programs() == before + 1
    assert sum("float4 exp_float4(float4 x) {" in text for text in texts) > 1
    powers = np.exp(np.exp(x))
    np.testing.assert_allclose(found["b"], powers / powers.sum(-1, keepdims=True), rtol=1e-5)


def test_what_a_driver_refuses_is_remembered_with_its_log(
    saved: Path, right: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start reports the same error without compiling. Other options are another program."""
    monkeypatch.setenv("ROMOU_OPENCL_DUMP_DIR", str(cache.parent / "dump"))
    monkeypatch.setenv("ROMOU_OPENCL_BUILD_OPTIONS", "-Dfloat=no_such_type")
    texts = []
    for _ in range(2):
        with pytest.raises(DeviceError, match="clBuildProgram failed: CL_BUILD_PROGRAM_FAILURE") as raised:
            outputs_of(romou.load(saved))
        texts.append(str(raised.value))
    refused = {path for path in cache.glob("*.program") if path.read_bytes()[72:73] == b"r"}
    assert all("no_such_type" in text and "source saved in" in text for text in texts)
    assert "refused before" not in texts[0]
    (named,) = re.findall(r"refused before, to try again remove (\S+);", texts[1])
    assert Path(named) in refused
    monkeypatch.delenv("ROMOU_OPENCL_BUILD_OPTIONS")
    assert start(saved, right).compiled > 0


_KILLS = """
cache, kills, moments = sys.argv[3], int(sys.argv[4]), random.Random(17)
timed = begin(ROMOU_CACHE_DIR=cache + "/timed")
begun_s = time.monotonic()
code, report = end(*timed)
assert code == 0
longest_s, keep_s = time.monotonic() - begun_s, report[3]

def names_in(folder):
    return os.listdir(folder + "/programs") if os.path.isdir(folder + "/programs") else []

killed = while_written = with_entries = partial = attempts = 0
while killed < kills and attempts < 3 * kills:
    attempts += 1
    # Two of three processes get an empty folder and are killed once something stands in it. The others are killed at any moment and share folders.
    is_written = attempts % 3 != 1
    folder = f"{cache}/{attempts}" if is_written else f"{cache}/shared{attempts // 9}"
    child, pipe = begin(ROMOU_CACHE_DIR=folder)
    if is_written:
        while not names_in(folder) and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(1e-4)
    time.sleep(moments.uniform(0, keep_s if is_written else longest_s))
    os.kill(child, signal.SIGKILL)
    was_killed = end(child, pipe)[0] == -signal.SIGKILL
    names = names_in(folder)
    killed += was_killed
    while_written += was_killed and is_written
    with_entries += was_killed and any(name.endswith(".program") for name in names)
    partial += was_killed and any(not name.endswith(".program") for name in names)
    started = begin(ROMOU_CACHE_DIR=folder)
    begun_s = time.monotonic()
    code, report = end(*started)
    # Wrong outputs end a process with 1, a crash with the number of its signal.
    assert code == 0, f"attempt {attempts}: {code}"
    # Later moments would find most processes at their end.
    longest_s, keep_s = min(longest_s, time.monotonic() - begun_s), min(keep_s, report[3] or keep_s)
print(json.dumps([attempts, killed, while_written, with_entries, partial]))
"""  # noqa: E501


def test_a_driver_that_crashes_on_binaries_gets_source(saved: Path, right_file: Path, cache: Path) -> None:
    """After one crash the program at fault stays a source, after a second consecutive one all programs of the device.
    Every other start is right.
    """
    flaws = ["", *["crashes on binaries"] * 5, ""]
    lines = starts(CRASHES, saved, right_file, *flaws, ROMOU_OPENCL_LIBRARY=str(standin.library()))
    codes, reports = zip(*map(json.loads, lines), strict=True)
    assert codes == (0, -signal.SIGABRT, 0, -signal.SIGABRT, 0, 0, 0)
    count = reports[0][1]
    assert count > 2
    assert [report[:2] for report in reports if report is not None] == [[0, count]] * 5
    first, second, *later = (report[2] for report in reports[2:] if report is not None)
    assert re.search(
        "a process ended while the driver loaded a kept program, that program is compiled from source from now on",
        first[0],
    )
    assert re.search(
        "a process ended while the driver loaded a kept program, again: all programs of this device are compiled",
        second[0],
    )
    assert (len(first), len(second), later) == (1, 1, [[], []])
    # The file that the line says to remove.
    Path(re.findall(r"remove (\S+)\)", second[0])[0]).unlink()
    (line,) = starts(CRASHES, saved, right_file, "", ROMOU_OPENCL_LIBRARY=str(standin.library()))
    code, report = json.loads(line)
    assert (code, report[:3]) == (0, [count - 2, 2, []])


def test_a_process_killed_at_any_moment_leaves_no_wrong_program(saved: Path, right_file: Path, tmp_path: Path) -> None:
    """Processes that write the cache are killed at random moments. Each next start gives the right outputs, without a
    crash.
    """
    # PoCL compiles anew each time, so the moments spread over compiling, launching and writing.
    (line,) = starts(_KILLS, saved, right_file, tmp_path, KILLS, ROMOU_PROGRAM_CACHE_MB="64", POCL_KERNEL_CACHE="0")
    attempts, killed, while_written, with_entries, partial = json.loads(line)
    print(
        f"{killed} of {attempts} processes were killed before they ended, {while_written} of them after they began to"
        " write;",
        end=" ",
    )
    print(f"behind {with_entries} there were entries, behind {partial} an unfinished file")
    assert killed > 0


@pytest.mark.parametrize("what", ["pipe", "folder", "socket", "link"])
def test_no_start_waits_for_what_is_no_file(
    what: str, saved: Path, right: bytes, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A special file in the place of a program, of a mark, or of a mark without a program does not block a start."""

    def put(path: Path) -> None:
        path.unlink(missing_ok=True)
        if what == "pipe":
            os.mkfifo(path)
        elif what == "folder":
            path.mkdir()
        elif what == "socket":
            with socket.socket(socket.AF_UNIX) as server:
                # A whole path would be too long.
                monkeypatch.chdir(path.parent)
                server.bind(path.name)
        else:
            os.mkfifo(tmp_path / path.name)
            path.symlink_to(tmp_path / path.name)

    start(saved, right)
    for place in ("{}.program", "{}.try", "0.try"):
        key = sorted(cache.glob("*.program"))[0].stem
        put(cache / place.format(key))
        start(saved, right)
