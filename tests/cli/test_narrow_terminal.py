"""Output of commands on a terminal of 80 columns: no line is longer, no word is cut, and no column is one word wide."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import onnx
import pytest
from click.testing import CliRunner
from rich.console import Console

import romou
from archprobe.cli import app
from romou.base.outcome import Outcome
from romou.cli import COMMANDS, doctor, main
from romou.compiler.frontend.imported import ImportedModel
from romou.compiler.single_operator import conv, task_of
from romou.devices.targets import Target
from romou.runtime.module import LayerRow, Summary
from romou.tools.inspection.kernels import inspect_function
from romou.tools.regression import Bench, compare_recorded
from romou.tools.report.comparison import bench_table, comparison_table
from romou.tools.report.inspected import print_kernel
from romou.tools.report.table import print_summary, print_table
from romou.tuner.search.progress import NoProgress, PlainProgress, Status, TerminalProgress, progress_of
from support.data.benches import bench, operator
from support.models.small_networks import prime_net

NARROW, WIDE = 80, 500
PIXEL = Path(__file__).parents[1] / "archprobe/data/pixel4"
LONG = "conv2d_1x1024x14x14_1024_3x3_s1"
NODES = ("Conv (/layer1/conv)", "Relu (/layer1/act)")
ADRENO = ["--target", "opencl -device=adreno640"]
STATUS = Status(
    task=LONG,
    outcome=Outcome.OK,
    best_ms=12.345,
    gflops=1234.5,
    model_ms=1234.56,
    done=61,
    total=120,
    seconds_left=100.0,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("narrow") / "net.onnx"
    onnx.save(prime_net(), path)
    return str(path)


def command(group: click.Group, *arguments: str) -> Callable[[int], str]:
    def at(width: int) -> str:
        result = CliRunner(env={"COLUMNS": str(width), "FORCE_COLOR": "1"}).invoke(group, list(arguments))
        assert result.exit_code in (0, 3), result.output
        return result.stdout

    return at


def printed(write: Callable[[Console], object]) -> Callable[[int], str]:
    def at(width: int) -> str:
        out = io.StringIO()
        write(Console(file=out, width=width, force_terminal=True))
        return out.getvalue()

    return at


def assert_readable(at: Callable[[int], str]) -> None:
    narrow, wide = (re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", at(width)) for width in (NARROW, WIDE))
    lines = narrow.splitlines()
    assert max(map(len, lines)) <= NARROW, max(lines, key=len)
    assert "…" not in narrow
    # A word that is longer than its share of a line may be folded. Shorter words stay whole.
    words = {word for word in re.findall(r"[\w.%-]+", wide) if len(word) <= 24}
    assert words <= set(re.findall(r"[\w.%-]+", narrow))
    filled = [line.strip() for line in lines if line.strip(" ─━┃│╇╪┡┩┏┓└┘├┤┼╈")]
    alone = "".join("." if len(re.findall(r"\w+", line)) <= 1 else " " for line in filled)
    assert "...." not in alone, narrow


def progress(out: Console) -> None:
    shown = TerminalProgress(out)
    shown.start(0, 120)
    shown.update(STATUS)
    shown._bar.refresh()
    shown.stop()


def summary(out: Console) -> None:
    measured = ((LONG, 12, 1234.567), ("pool", 1, 1.0))
    rows = [
        LayerRow(name=n, calls=c, trials=60, flops=10**9, default_ms=ms, tuned_ms=ms / 9, config={})
        for n, c, ms in measured
    ]
    print_summary(Summary.unmeasured(target="opencl", rows=tuple(rows), seconds=0.0), out)


def compared(out: Console) -> None:
    def timed(ms: float) -> Bench:
        times = ((ms,) * 3,) * 16
        return bench(
            operator(LONG, times_ms=times, nodes=NODES),
            operator("dense"),
            model_times_ms=times,
            reference_times_ms=((1.0,) * 3,) * 16,
        )

    print_table(comparison_table(compare_recorded(timed(1.0), timed(1.5), fail_over=0.05, reason="a test")), out)


LINES_ALONE = {
    "docs",
    "compile",
    "export",
    "generate",
    "records",
    "run",
    "serve",
    "report",
    "phone",
    "setup",
    "version",
}
TABLES: dict[str, Sequence[Callable[[int], str]]] = {
    "tune": [printed(summary), printed(progress)],
    "bench": [
        printed(lambda out: print_table(bench_table(bench(operator(LONG, nodes=NODES), operator("dense"))), out))
    ],
    "compare": [printed(compared)],
    "devices": [command(main, "devices")],
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str) -> None:
    for at in TABLES[name]:
        assert_readable(at)


def test_space(model: str) -> None:
    """`romou space` and `romou inspect --knobs` print the knobs of an operator by the same function."""
    assert_readable(command(main, "space", model, *ADRENO))


def test_check(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImportedModel, "cpu_ms", lambda _: 1.25)  # it is timed for each width
    assert_readable(command(main, "check", model, *ADRENO))


def test_inspect() -> None:
    target, task = Target(ADRENO[1]), task_of(conv(16, (12, 12), 32, (3, 3)))
    config = task.default_config(target)
    func, names = task.schedule(config, target)["main"], NODES
    (kernel,) = inspect_function(func, target, task=task.name, config=config, nodes=names)
    assert_readable(
        printed(
            lambda out: print_kernel(
                kernel, {"a630": "the compiler's error, as long as it is " * 4}, out, has_source=False
            )
        )
    )


def test_a_bench_is_titled_by_its_target_in_words() -> None:
    assert bench_table(bench(operator("dense"))).title == "model.onnx, opencl"


def test_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = romou.Finding(
        name="opencl:0", is_ok=False, detail="a device that does not work " * 8, hint="try something else " * 6
    )
    monkeypatch.setattr("romou.api.doctor._devices", lambda: ([finding], []))
    assert_readable(command(main, "doctor"))


def test_the_others_print_no_table() -> None:
    """Every command that prints a table needs a test above."""
    assert set(COMMANDS) == {*TABLES, "check", "space", "inspect", "doctor", *LINES_ALONE}
    for name in LINES_ALONE:
        text = (Path(doctor.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        assert "Table(" not in text


@pytest.mark.parametrize("arguments", [["analyse", str(PIXEL)]], ids=lambda arguments: arguments[0])
def test_archprobe(arguments: list[str]) -> None:
    assert_readable(command(app, *arguments))


@pytest.mark.parametrize("width", [NARROW, 100])
def test_progress_keeps_its_bar_and_all_of_its_text(width: int) -> None:
    text = " ".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed(progress)(width)).split())
    assert str(STATUS) in text
    assert "61/120" in text
    assert "━" * 15 in text


@pytest.mark.parametrize(
    ("is_wanted", "is_terminal", "kind"),
    [
        (None, True, TerminalProgress),
        (None, False, NoProgress),
        (True, True, TerminalProgress),
        (True, False, PlainProgress),
        (False, True, NoProgress),
    ],
)
def test_progress_shows_itself_only_in_a_terminal(
    is_wanted: bool | None, is_terminal: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    assert type(progress_of(is_wanted)) is kind
