"""The kinds of files that others write and Romou reads, for fuzz_files.py: a small right one, and what a user does with it."""  # noqa: E501

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import romou
from romou.api.report import _with_document
from romou.base.errors import DeviceError, ModelError, RecordError, RomouError, UsageError
from romou.base.outcome import Outcome
from romou.compiler.operators.costs.pretrained import ShippedModel, model_path
from romou.compiler.single_operator import conv, task_of
from romou.compiler.task import TunableTask
from romou.devices.hardware import load_device
from romou.devices.targets import Target
from romou.driver.search.contribution import contribute_schedules
from romou.models.decoder import DecoderShape, decoder
from romou.runtime.deploy.phone import Phone
from romou.runtime.module import Argument, manifest
from romou.tools.regression import Bench, OperatorBench
from romou.tools.report.evidence import Evidence, UnknownError
from romou.tools.report.figures import device
from romou.tuner.records import Origin, Record, RecordStore, export_t4, import_t4, to_t4
from romou.tuner.records.autotvm_spaces import import_autotvm
from romou.tuner.records.database import ScheduleDatabase, TunedSchedule, read_schedules, workload_of, write_schedules
from romou.tuner.records.recorded_space import RecordedConfig, RecordedSpace
from romou.tuner.records.recording import RecordedTrial, Recording, recordable_task
from romou.tuner.records.task_files import keep_tasks, kept_task

DEVICE = {"kind": "opencl", "name": "made up", "driver": "1", "platform": "p", "is_host_cpu": False}
ORIGIN = Origin(device=DEVICE, romou="1", tvm="2")
TARGET = "opencl -device=adreno640"
WORK = conv(8, (6, 6), 8, (1, 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of file.

    name: its file name. A folder's file is read by the folder.
    content: returns a right file.
    read: reads the file as a user does.
    error: what a damaged file may raise. None: it is left out with a warning.
    is_text: whether it is lines of JSON.
    is_packed: whether it is the gzip of such lines.
    """

    name: str
    content: Callable[[], bytes]
    read: Callable[[Path], object]
    error: type[RomouError] | None = RecordError
    is_text: bool = True
    is_packed: bool = False


@functools.cache
def task() -> TunableTask:
    return recordable_task(WORK.to_dict())


@functools.cache
def _records() -> tuple[Record, ...]:
    config = dict(task().default_config(Target(TARGET)))
    record = Record(
        task_key=task().key,
        task_name=task().name,
        config=config,
        device=DEVICE,
        outcome=Outcome.OK,
        times_s=(1e-3, 2e-3),
        relative_l2_error=1e-6,
        target=TARGET,
        time="2026-01-01T00:00:00+00:00",
        romou="1",
        tvm="2",
    )
    failed = dataclasses.replace(
        record, outcome=Outcome.BUILD_ERROR, times_s=(), error="no", config={**config, "tile_w": 3}
    )
    return record, failed, dataclasses.replace(record, is_again=True, seed=7)


def _lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _read_records(path: Path) -> None:
    with RecordStore(path.parent) as store:
        export_t4(store, path.parent / "t4")
        store.best(task().key, DEVICE)
        store.append(dataclasses.replace(_records()[0], is_again=True))
    contribute_schedules(path.parent / "best.jsonl", path.parent)
    RecordStore(path.parent).close()


def _schedule() -> TunedSchedule:
    return TunedSchedule(record=_records()[0], family=task().family, workload=workload_of(task()), source="here")


def _read_schedules(path: Path) -> None:
    shutil.copy(path, path.with_name("adreno_640.jsonl"))
    target = Target(TARGET)
    space = task().space(target)
    other = recordable_task(conv(16, (6, 6), 8, (1, 1)).to_dict())
    for each in (task(), other):
        ScheduleDatabase(path.parent).starts(each, space, each.default_config(target), DEVICE, "adreno640")
    write_schedules(path.with_name("again.jsonl"), read_schedules(path))


def _read_t4(path: Path) -> None:
    with RecordStore(path.parent / "work") as store:
        store.add_missing(import_t4(path))
    with RecordStore(path.parent / "work") as store:
        export_t4(store, path.parent / "t4")


def _autotvm() -> bytes:
    arguments = [
        ["TENSOR", [1, 16, 12, 12], "float16"],
        ["TENSOR", [32, 16, 3, 3], "float16"],
        [1, 1],
        [1, 1, 1, 1],
        [1, 1],
        "float16",
    ]
    template, knobs = (
        "conv2d_nchwc_acc32.image2d",
        {
            "tile_fc": [-1, 1, 8],
            "tile_y": [-1, 1, 1],
            "tile_x": [-1, 4, 2],
            "tile_rcc": [-1, 1],
            "tile_ry": [-1, 1],
            "tile_rx": [-1, 1],
            "auto_unroll_max_step": 0,
            "unroll_explicit": 0,
        },
    )
    entity = [[name, "sp" if isinstance(value, list) else "ot", value] for name, value in knobs.items()]
    log = {
        "input": ["opencl", template, arguments, {}],
        "config": {"entity": entity},
        "result": [[1e-3], 0, 1.5, 1.0],
        "version": 0.2,
    }
    row = [list(knobs.values()), 300.0, 0]
    of_task = {
        "gpu": "adreno660",
        "template": template,
        "args": arguments,
        "knobs": list(knobs),
        "rows": [row, [row[0], None, 4]],
    }
    return _lines(["# a comment", json.dumps(log), json.dumps(of_task)])


def _read_autotvm(path: Path) -> None:
    try:
        import_autotvm(path, path.parent / "spaces", "adreno660")
    except UsageError as error:  # the log names an unknown GPU
        raise RecordError(error.message) from error


def _recording() -> bytes:
    header = {
        "recording": 1,
        "origin": dataclasses.asdict(ORIGIN),
        "target": TARGET,
        "facts": {"type": "gpu"},
        "timing": {"clock_limit": 1.15},
    }
    trials = [
        RecordedTrial(
            record=record, family=task().family, workload=WORK.to_dict(), chosen_by="random", clock_s=(1.0, 1.1)
        )
        for record in _records()
    ]
    sensors = {"time": "now", "clocks": {"gpu": 10**9}, "temperatures": {"skin": 30}}
    report = {"archprobe": {"ArchProbe": {"IsComplete": True}, "RegCount": {"RegCount": 64}}}
    return _lines([json.dumps(header), *(t.to_line() for t in trials), json.dumps(sensors), json.dumps(report)])


def _read_recording(path: Path) -> None:
    contribute_schedules(path.with_name("best.jsonl"), None, path)
    recording = Recording.begin(path, Recording.load(path).origin, {})
    recording.append(RecordedTrial(record=_records()[0], family="f", workload={}, chosen_by="default").to_line())


def _space() -> bytes:
    space = RecordedSpace(
        name="conv",
        task={"key": "k"},
        knobs={"a": (1, 2, 4), "b": ("x", "y")},
        device=DEVICE,
        context={"default": 0},
        configs={n: RecordedConfig(index=n, outcome=Outcome.OK, times_s=(1e-3,) * 3) for n in range(3)},
    )
    return _lines([json.dumps(space.header()), *(json.dumps(c.to_list()) for c in space.configs.values())])


def _read_space(path: Path) -> None:
    space = RecordedSpace.load(path)
    assert space.space().knobs == space.knobs
    space.start(path.with_name("again.json.gz"))
    min((c.time_s for c in space.configs.values() if c.time_s is not None), default=None)


def _report() -> bytes:
    curve = {"name": "times", "x_label": "n", "y_label": "ns", "x": [1, 2, 3], "y": [1.0, 2.0, 3.0], "marks": {"L1": 2}}
    answer = {"value": 100, "low": 98, "high": 101}
    driver = {"name": "Adreno 640", "vendor": "QUALCOMM", "driver": "1", "is_cpu": False, "extensions": ["cl_khr_fp16"]}
    chase = "CacheHierarchyPChase"
    report: dict[str, dict[str, Any]] = {
        "ArchProbe": {"Version": "0.1.0", "Date": "now", "IsComplete": True, "Driver": driver},
        "RegCount": {
            "RegCount": 64,
            "RegType": "Pooled",
            "FullRegConcurWorkgroupCount": 24,
            "Details": {"Curves": [curve], "Answers": {"RegCount": answer}},
        },
        "WarpSizeMethodB": {"WarpThreadCount": 64},
        "Cores": {"CoreCount": 2},
        f"Buffer{chase}": {"CacheVectorCountLv1": 131072},
        f"Image{chase}": {"CachePixelCountLv1": 1024, "CachePixelCountLv2": 131072},
        "BufferBandwidth": {"MaxBandwidth": 80.0, "DramBandwidth": 30.0},
        "ImageBandwidth": {"MaxBandwidth": 170.0},
        "LocalMemBandwidth": {"MaxBandwidth": 90.0},
        "Gflops": {"FloatGflops": 800.0, "HalfGflops": 1600.0, "FloatArch": "SISD"},
        "Device": {"CacheSize": 131072, "MaxLocalMemSize": 32768, "LogicThreadCount": 1024, "ClockFrequency": 585},
    }
    done = {aspect: {"Done": True, **values} for aspect, values in report.items()}
    return json.dumps(done, indent=1).encode()


def _device_file() -> bytes:
    return json.dumps(load_device("adreno640").to_dict() | {"name": "file"}, indent=1).encode()


def _read_document(path: Path) -> None:
    path = path.rename(path.with_name("file.json"))
    evidence = _with_document(Evidence(title=""), path)
    if evidence.spec is not None:
        evidence.spec.to_dict()
    with contextlib.suppress(UnknownError):  # it has no curves
        json.dumps(device.rows(evidence))


@functools.cache
def _saved_model() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="romou-fuzz-files-"))
    info, weight = helper.make_tensor_value_info, numpy_helper.from_array(np.ones((8, 4), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [info("x", 1, [2, 8])], [info("y", 1, [2, 4])], [weight]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return romou.compile(folder / "model.onnx", target="opencl -device=host").save(folder / "model.romou")


@functools.cache
def _saved_decoder() -> Path:
    shape = DecoderShape(layers=1, width=32, heads=2, shared=1, size=16, inner=32, words=64, longest=16)
    folder = Path(tempfile.mkdtemp(prefix="romou-fuzz-files-"))
    return romou.Decoder(decoder(shape), chunk=4, target="null", verify=False).save(folder / "decoder.romou")


def _read_decoder(path: Path) -> None:
    _read_model(path, _saved_decoder(), lambda folder: romou.Decoder.load(folder).generate([1, 2, 3, 4, 5, 6], 2))


def _read_model(path: Path, saved: Path | None = None, load: Callable[[Path], object] = romou.load) -> None:
    """Load a folder with this romou.json, and again with a hash that fits, as a forger writes it."""
    folder = Path(shutil.copytree(saved or _saved_model(), path.parent / "model"))
    content = path.read_bytes()
    for each in (content, _signed(content)):
        (folder / manifest.META).write_bytes(each)
        try:
            load(folder)
            _with_summary(folder)
        except ModelError:
            continue


def _with_summary(folder: Path) -> None:
    from romou.api.report import _evidence_in

    evidence, _, _ = _evidence_in([folder])
    repr(evidence.summary)


def _signed(content: bytes) -> bytes:
    try:
        about = json.loads(content)
        about.pop("sha256", None)
        return manifest._document(about)
    except (ValueError, AttributeError, RecursionError):
        return content


def _bench() -> bytes:
    operator = OperatorBench(
        name="conv",
        key="0" * 16,
        function="f",
        calls=1,
        config={"tile": 4},
        arguments=(Argument(shape=(1, 4), dtype="float32", scope="global"),),
        source_sha256="0",
        source_bytes=9,
        measures={"registers": 5},
        times_ms=((1.0, 1.1), (1.2,)),
        nodes=("a",),
    )
    bench = Bench(
        model="m",
        target=Target(TARGET).to_json(),
        device=DEVICE,
        romou="1",
        tvm="2",
        time="now",
        operators=(operator,),
        model_times_ms=((1.0, 2.0),),
    )
    return bench.to_json().encode()


PRINTED = [
    "List of devices attached\nP1\tdevice\n",
    '{"target": "android-arm64", "tvm": "1", "tvm_ffi": "2", "romou": "3"}',
    'noise\n{"opencl": {"library": "libOpenCL.so", "devices": [{"name": "Adreno"}], "failure": null},'
    ' "vulkan": {"failure": "no"}}',
    "pid 12\n",
    "opencl-adreno640/programs\n",
    "P1 tcp:9090 tcp:9090\n",
]


def _read_printed(path: Path) -> None:
    """Ask a phone for its state, whose answers are the parts of the file, and let it warm a model."""
    answers = path.read_bytes().decode(errors="replace").split("\x1e")

    class Answering(Phone):
        def _run(self, *arguments: str, what: str, is_checked: bool = True, stdin: str = "") -> str:
            if arguments[0] == "pull":
                assert Path(arguments[2]) == variant, "only variants of the model are written"
            words = ("devices", "runtime.json", "--devices", "server.pid", "ls -d", "--list")
            places = [place for place, word in enumerate(words) if word in " ".join(arguments)]
            return answers[places[0] % len(answers)] if places else ""

    variant = path.parent / "model" / "opencl-adreno640"
    variant.mkdir(parents=True)
    (variant.parent / "model.json").write_text("{}")
    adb = shutil.which
    shutil.which = lambda name, *_: name
    try:
        phone = Answering()
        json.dumps(dataclasses.asdict(phone.status()))
        phone.warm(variant.parent)
    except UsageError as error:
        raise DeviceError(error.message) from error
    finally:
        shutil.which = adb


def _task_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        keep_tasks(Path(folder), [_plain_task()])
        return next(Path(folder).rglob("*.json")).read_bytes()


@functools.cache
def _plain_task() -> TunableTask:
    return task_of(WORK)


def _read_task(path: Path) -> None:
    key = _plain_task().key
    (path.parent / "tasks").mkdir()
    shutil.copy(path, path.parent / "tasks" / f"{key}.json")
    kept_task(path.parent, key)


def _cost_model() -> bytes:
    return model_path("opencl", "nvidia_h200").read_bytes()


def _read_cost_model(path: Path) -> None:
    ShippedModel(path).read()


KINDS: dict[str, Kind] = {
    "records": Kind(
        name="records.jsonl", content=lambda: _lines([r.to_line() for r in _records()]), read=_read_records
    ),
    "schedules": Kind(
        name="made_up.jsonl", content=lambda: _lines([_schedule().to_line()] * 2), read=_read_schedules, error=None
    ),
    "t4": Kind(name="a.t4.json", content=lambda: json.dumps(to_t4(_records())).encode(), read=_read_t4),
    "autotvm": Kind(name="log.json", content=_autotvm, read=_read_autotvm),
    "autotvm packed": Kind(name="log.json.gz", content=_autotvm, read=_read_autotvm, is_packed=True),
    "recording": Kind(name="phone.json", content=_recording, read=_read_recording),
    "space": Kind(name="conv.json.gz", content=_space, read=_read_space, is_packed=True),
    "cost model": Kind(name="model.ubj.gz", content=_cost_model, read=_read_cost_model, error=None, is_text=False),
    "report": Kind(name="report.json", content=_report, read=_read_document, error=UsageError),
    "device": Kind(name="mine.json", content=_device_file, read=_read_document, error=UsageError),
    "bench": Kind(name="bench.json", content=_bench, read=_read_document, error=UsageError),
    "saved model": Kind(
        name="romou.json",
        content=lambda: (_saved_model() / manifest.META).read_bytes(),
        read=_read_model,
        error=ModelError,
    ),
    "saved decoder": Kind(
        name="romou.json",
        content=lambda: (_saved_decoder() / manifest.META).read_bytes(),
        read=_read_decoder,
        error=ModelError,
    ),
    "phone": Kind(name="printed", content=lambda: "\x1e".join(PRINTED).encode(), read=_read_printed, error=DeviceError),
    "task": Kind(name="task.json", content=_task_file, read=_read_task),
}


def packed(kind: Kind, content: bytes) -> bytes:
    """Return the bytes of a file with this content."""
    return gzip.compress(content, mtime=0) if kind.is_packed else content
