"""The recording of a phone: what is measured, at which clock, within the minutes, and what another call adds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from romou.base.errors import ConnectionLostError, DeviceError
from romou.base.outcome import Outcome
from romou.cli import main
from romou.compiler.operators.workload import Workload
from romou.compiler.single_operator import conv
from romou.compiler.task import TunableTask
from romou.devices.targets import Target
from romou.driver.options import PhoneRecordOptions
from romou.driver.phone import recording as phone_recording
from romou.driver.phone.layers import CONFIGS, ChosenConfig, choose, operators
from romou.driver.phone.recording import MEASURE, PhoneRecorder, record_phone
from romou.runtime.rpc import Address, connect
from romou.tuner.measure import BuildResult, MeasureResult, RpcRunner
from romou.tuner.pruning.tasks import pruned_task
from romou.tuner.records import Origin
from romou.tuner.records.recording import Recording, recordable_task
from support.devices import made_up_device
from support.servers.rpc_servers import KEY, Server, serving

PHONE = Target("opencl -device=adreno640")
WORKS: dict[str, Workload] = {
    "first": conv(8, (6, 6), 8, (1, 1)),
    "second": conv(4, (5, 5), 4, (3, 3), padding=(1, 1, 1, 1), groups=4),
}
SMALL = dataclasses.replace(MEASURE, build_workers=1, repeat=1, min_repeat_ms=0.1)
KERNEL_S = 1e-3


class GoneError(ConnectionLostError):
    def __init__(self) -> None:
        super().__init__("the phone is gone")


class Phone(made_up_device.Runner):
    """A phone with a clock that may fall, on a time of its own.

    slowdown: time -> factor on every kernel
    run_s: seconds that a run takes
    """

    def __init__(self, slowdown: Callable[[float], float], fail_after: int = 1_000_000, *, run_s: float = 0.5) -> None:
        super().__init__(fail_after=fail_after, error=GoneError)
        self.slowdown, self.run_s, self.now, self.pauses = slowdown, run_s, 0.0, list[float]()

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)

    def sensors(self) -> Mapping[str, Mapping[str, int]]:
        return {"clocks": {"gpu": int(1e9 / self.slowdown(self.now))}, "temperatures": {}}

    def run(
        self, batch: Sequence[BuildResult], *, best_s: float | None = None, stop_at: float | None = None
    ) -> Iterator[MeasureResult]:
        assert stop_at is not None
        for result in super().run(batch, best_s=best_s):
            before = self.slowdown(self.now)
            self.now += self.run_s
            if self.now > stop_at:
                return
            after = self.slowdown(self.now)
            times = (KERNEL_S * max(before, after),)
            yield dataclasses.replace(result, times_s=times, clock_s=(1e-4 * before, 1e-4 * after))


@functools.cache
def task_of_text(text: str) -> TunableTask:
    return recordable_task(json.loads(text))


@functools.cache
def chosen_of(task: TunableTask) -> list[ChosenConfig]:
    return choose(task, PHONE, 12, seed=0)


def recorded(path: Path, phone: Phone, configs: int = 12, seconds: float = 600.0, kind: str = "gpu") -> Recording:
    origin = Origin.here(made_up_device.FINGERPRINT.to_dict())
    header = {"timing": {"clock_limit": MEASURE.clock_limit}, "facts": {"type": kind}}
    recording = Recording.begin(path, origin, header)
    recorder = PhoneRecorder(
        recording,
        PHONE,
        made_up_device.Builder(),
        phone,
        sensors=phone.sensors,
        stop_at=phone.now + seconds,
        clock=phone.clock,
        sleep=phone.sleep,
    )
    # Tasks and configs take the most time of a simulation, and are the same in each.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phone_recording, "recordable_task", lambda values: task_of_text(json.dumps(values)))
        patch.setattr(phone_recording, "choose", lambda task, target, count, seed: chosen_of(task)[:count])
        recorder.record(WORKS, configs, 0, lambda line: None)
    return recording


def test_the_list_has_twenty_operators_of_thirty_configs() -> None:
    assert (len(operators(PHONE)), CONFIGS) == (20, 30)
    without_fp16 = operators(PHONE.with_options(half="storage"))
    assert len(without_fp16) == 12
    assert {work.dtype for work in without_fp16.values()} == {"float32"}
    # A file restores them by their numbers.
    for work in operators(PHONE).values():
        assert recordable_task(json.loads(json.dumps(work.to_dict()))).template.workload == work


def test_the_default_then_the_estimates_first_ten_then_random_ones() -> None:
    task = pruned_task(recordable_task(conv(64, (14, 14), 64, (1, 1)).to_dict()), PHONE)
    chosen = choose(task, PHONE, 30, seed=0)
    assert [each.chosen_by for each in chosen] == ["default"] + 10 * ["estimate"] + 19 * ["random"]
    assert chosen[0].config == task.default_config(PHONE)
    assert len({each.config.key for each in chosen}) == 30
    assert all(task.space(PHONE).is_valid(each.config) for each in chosen[1:])
    first_ten = sorted(each.expected_s or 0.0 for each in chosen[1:11])
    others = sorted(each.expected_s or 0.0 for each in chosen[11:])
    # Estimates of near configs are equal or differ little, so a random one may be as good as the first.
    assert first_ten[0] <= others[0]
    assert first_ten[-1] < others[len(others) // 2]
    assert choose(task, PHONE, 30, seed=0) == chosen
    assert choose(task, PHONE, 30, seed=1)[11:] != chosen[11:]
    assert [each.chosen_by for each in choose(task, PHONE, 3, seed=0)] == ["default", "estimate", "estimate"]
    host = Target("opencl -device=host")
    unknown = choose(pruned_task(task, host), host, 5, seed=0)
    assert [(each.chosen_by, each.expected_s) for each in unknown] == [("default", None)] + 4 * [("random", None)]


def test_candidates_are_measured_again_after_a_drop_of_the_clock(tmp_path: Path) -> None:
    """From 3 s to 5 s all kernels take twice their time. Every time that is kept is right, and nothing is marked."""
    phone = Phone(lambda now: 2.0 if 3.0 <= now < 5.0 else 1.0)
    recording = recorded(tmp_path / "phone.json", phone)
    assert len(recording.trials) == 24
    assert {trial.record.time_s for trial in recording.trials} == {KERNEL_S}
    assert all(recording.is_steady(trial) for trial in recording.trials)
    again = [trial for trial in recording.trials if trial.attempts > 1]
    assert [trial.attempts for trial in again] == [3]
    assert phone.pauses == [1.0, 4.0]
    assert {trial.record.clock_ratio for trial in recording.trials} == {1.0}
    assert len(phone.seen) == 24 + 2
    assert [trial.chosen_by for trial in recording.trials[:12]] == ["default"] + 10 * ["estimate"] + ["random"]


def test_a_drop_within_a_candidate_is_seen_by_the_time_after_it(tmp_path: Path) -> None:
    phone = Phone(lambda now: 2.0 if now == 3.0 else 1.0)
    recording = recorded(tmp_path / "phone.json", phone)
    assert [trial.attempts for trial in recording.trials if trial.attempts > 1] == [2]
    assert {trial.record.time_s for trial in recording.trials} == {KERNEL_S}


def test_a_clock_that_stays_low_is_marked(tmp_path: Path) -> None:
    """Pauses take at most 15% of the time. Then candidates are measured once each."""
    phone = Phone(lambda now: 1.0 if now < 3.0 else 1.5)
    recording = recorded(tmp_path / "phone.json", phone, seconds=100.0)
    assert len(recording.trials) == 24
    marked = [trial for trial in recording.trials if not recording.is_steady(trial)]
    assert {(trial.record.time_s, trial.record.clock_ratio) for trial in marked} == {(1.5 * KERNEL_S, 1.5)}
    assert len(marked) == 24 - 5
    assert phone.pauses == 3 * [1.0, 4.0]
    assert [trial.attempts for trial in marked] == 3 * [3] + 16 * [1]
    # The clock of a CPU cannot be told from its load.
    cpu = Phone(phone.slowdown)
    recorded(tmp_path / "cpu.json", cpu, kind="cpu")
    assert cpu.pauses == []


def test_the_time_is_shared_and_another_call_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    first = Phone(lambda now: 1.0, run_s=2.5)
    recording = recorded(path, first, seconds=50.0)
    counts = [sum(t.family == family for t in recording.trials) for family in ("conv2d", "depthwise")]
    assert counts == [10, 10]
    assert first.now <= 50.0 + 2.5
    # If time is short, it goes to the first operators.
    short = recorded(tmp_path / "short.json", Phone(lambda now: 1.0, run_s=2.5), seconds=24.0)
    assert [sum(t.family == family for t in short.trials) for family in ("conv2d", "depthwise")] == [8, 1]
    second = Phone(lambda now: 1.0)
    whole = recorded(path, second)
    assert len(second.seen) == 24 - 20
    assert not {*first.seen} & {*second.seen}
    assert len({(t.record.task_key, json.dumps(t.record.config)) for t in whole.trials}) == 24
    assert Recording.load(path).trials == whole.trials
    third = Phone(lambda now: 1.0)
    assert len(recorded(path, third).trials) == 24
    assert third.seen == []


def test_a_phone_that_goes_away_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "phone.json"
    with pytest.raises(ConnectionLostError):
        recorded(path, Phone(lambda now: 1.0, fail_after=7))
    assert len(Recording.load(path).trials) == 7
    assert len(recorded(path, Phone(lambda now: 1.0)).trials) == 24


def test_sensors_are_read_every_ten_seconds_where_they_can_be_read(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "phone.json", Phone(lambda now: 1.0))
    # 24 runs of half a second, and once more at the end.
    assert [s["clocks"]["gpu"] for s in recording.sensors] == 3 * [10**9]
    blind = Phone(lambda now: 1.0)
    blind.sensors = lambda: {"clocks": {}, "temperatures": {}}  # type: ignore[method-assign]
    assert recorded(tmp_path / "other.json", blind).sensors == []


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


def test_a_server_is_recorded_and_the_recording_continued(tmp_path: Path, server: Server) -> None:
    path = tmp_path / "phone.json"
    options = PhoneRecordOptions(rpc=server.address, archprobe=False)
    lines: list[str] = []
    record_phone(path, options, works={"first": WORKS["first"]}, configs=1, measure=SMALL, say=lines.append)
    assert lines[0].startswith("first: 1 of 1 configs, best ")
    recording = record_phone(path, options, works=WORKS, configs=1, measure=SMALL)
    assert [(t.family, t.chosen_by) for t in recording.trials] == [("conv2d", "default"), ("depthwise", "default")]
    for trial in recording.trials:
        assert trial.record.outcome == Outcome.OK
        # What keeps the clock up is no part of the time: the kernel takes microseconds.
        assert trial.record.time_s is not None
        assert trial.record.time_s < SMALL.hold_clock_ms / 2e3
        assert len(trial.clock_s) == 2
        assert min(trial.clock_s) > 0
        assert trial.record.clock_ratio is not None
        assert trial.record.clock_ratio >= 1
        assert trial.record.relative_l2_error is not None
    assert {*recording.tasks()} == {t.record.task_key for t in recording.trials}
    assert Target(recording.header["target"]).device_name == "host"
    assert recording.header["timing"]["hold_clock_ms"] == SMALL.hold_clock_ms > 0
    # A device is asked for before its kernels are built.
    with pytest.raises(DeviceError, match="does not serve the key"):
        record_phone(path, PhoneRecordOptions(rpc=server.address + "x"), works=WORKS, measure=SMALL)


def test_the_reference_kernel_keeps_the_device_busy(server: Server) -> None:
    connection = connect(Address.parse(server.address))
    with contextlib.closing(connection):
        kernel = PHONE.backend.reference_kernel(connection.session, 0, connection.devices[0])
        start = time.monotonic()
        # Launches that others slowed down make it shorter than asked for: a tenth of it is still not nothing.
        kernel.hold(1.0)
        assert kernel.time_s() < 0.1 < time.monotonic() - start


def test_the_servers_sensors(tmp_path: Path, server: Server) -> None:
    """Clocks of GPUs and temperatures are read from the server's files. Others, and files without a number, are not."""
    files = {
        "class/kgsl/kgsl-3d0/gpuclk": "585000000",
        "class/devfreq/1c500000.mali/cur_freq": "848000000",
        "class/devfreq/soc:memory/cur_freq": "1",
        "class/thermal/thermal_zone0/type": "gpuss-0\n",
        "class/thermal/thermal_zone0/temp": "41200\n",
        "class/thermal/thermal_zone1/type": "broken",
        "class/thermal/thermal_zone1/temp": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with contextlib.closing(RpcRunner(Address.parse(server.address), SMALL)) as runner:
        assert runner.sensors(str(tmp_path)) == {
            "clocks": {"kgsl-3d0": 585_000_000, "1c500000.mali": 848_000_000},
            "temperatures": {"gpuss-0": 41200},
        }
        assert runner.sensors(str(tmp_path / "none")) == {"clocks": {}, "temperatures": {}}


# ArchProbe's command line: a report that was begun is continued, and a run may not end in time.
ARCHPROBE = """
import json, os, pathlib, sys, time
report = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
before = json.loads(report.read_text()) if report.exists() else {"ArchProbe": {}}
report.write_text(json.dumps({**before, "ArchProbe": {"IsComplete": "RegCount" in before}, "RegCount": {"words": sys.argv}, "Key": {"key": os.environ["ROMOU_RPC_KEY"]}}))
if "RegCount" not in before: time.sleep(60)
"""  # noqa: E501


def test_archprobes_report_is_kept_unfinished_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        phone_recording, "python_command", lambda *arguments: [sys.executable, "-c", ARCHPROBE, *arguments]
    )
    origin = Origin.here(made_up_device.FINGERPRINT.to_dict())
    recording = Recording.begin(tmp_path / "phone.json", origin, {"timing": {"clock_limit": 1.15}})
    address = Address.parse("127.0.0.1:9/secret")
    lines: list[str] = []
    start = time.monotonic()
    phone_recording._add_archprobe(recording, address, "opencl:0", 3.0, lines.append)
    assert time.monotonic() - start < 30
    phone_recording._add_archprobe(recording, address, "opencl:0", 60.0, lines.append)
    assert lines == ["archprobe: 2 aspects; it was not finished in time", "archprobe: 2 aspects"]
    for report in (recording.archprobe, Recording.load(recording.path).archprobe):
        assert report is not None
        assert report["ArchProbe"] == {"IsComplete": True}
        assert report["Key"] == {"key": "secret"}
        # Others may read the command line.
        assert not any("secret" in word for word in report["RegCount"]["words"])
        assert report["RegCount"]["words"][1:8] == [
            "archprobe",
            "run",
            "--rpc",
            "127.0.0.1:9",
            "--device",
            "opencl:0",
            "--quick",
        ]


def test_errors_of_the_command(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"input": []}\n')
    new = str(tmp_path / "new.json")
    for arguments, code, text in (
        (["-o", new], 2, "no address of a phone is given"),
        (["-o", new, "--rpc", f"tracker://127.0.0.1:9/{KEY}"], 2, "a recording is of one"),
        (["-o", new, "--rpc", f"127.0.0.1:9/{KEY}"], 3, "no TVM RPC server answers at 127.0.0.1:9"),
        (["-o", str(other), "--rpc", f"127.0.0.1:9/{KEY}"], 1, "is no recording of a phone"),
        (["-o", new, "--rpc", f"127.0.0.1:9/{KEY}", "--minutes", "0"], 2, "minutes"),
    ):
        done = CliRunner().invoke(main, ["phone", "record", *arguments])
        assert (done.exit_code, text in done.output) == (code, True), done.output
    assert other.read_text() == '{"input": []}\n'
    assert not Path(new).exists()
