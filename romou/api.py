"""From an ONNX model to a tuned module: the stages in order. See ARCHITECTURE.md for what each one does."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax, tirx

from romou.backends.opencl import check_device, device_index, list_devices, no_device_error
from romou.errors import DeviceError, UsageError, unknown_name
from romou.frontend import import_onnx
from romou.frontend.reference import relative_l2_error, run_onnxruntime
from romou.frontend.tasks import extract_tasks
from romou.hardware import known_devices
from romou.inspection.kernels import InspectedKernel, inspect_function
from romou.layout import fuse_operators, pack_channels, place_images
from romou.library import compiler_for, is_here
from romou.measure import LocalBuilder, LocalRunner, MeasureOptions, RpcRunner, Runner
from romou.module import LayerRow, Summary, TunedModel, compile_model, random_inputs, schedule_model
from romou.module.remote import RemoteDevice
from romou.pruning import PrunedSpace, Rules
from romou.records import RecordStore
from romou.rpc import Address
from romou.search import TaskResult, TuningOptions, TuningSession, no_progress, terminal_progress
from romou.space import Config
from romou.target import Target
from romou.task import limits_of
from romou.tvm_patches.compat import check_versions
from romou.tvm_patches.quiet import quiet_stderr

if TYPE_CHECKING:
    import onnx
    import tvm

    from romou.frontend import ImportedModel
    from romou.task import Task

logger = logging.getLogger("romou")

# Of the whole model's outputs against onnxruntime; half-precision storage rounds at every layer.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2}
WHOLE_MODEL_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class _Graph:
    """A model as far as it goes without a config: fused functions and the tasks among them (function name -> task)."""

    imported: ImportedModel
    fused: tvm.IRModule
    tasks: list[Task]
    task_of: dict[str, Task]


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where candidates are measured and models run.

    named: the target as it was asked for.   target: the same within the limits of the device.   name: the device's own.
    index, remote: which device of this machine, or one behind a connection.   compile_for: see `LocalBuilder`.
    """

    named: Target
    target: Target
    name: str
    index: int = 0
    remote: RemoteDevice | None = None
    compile_for: str | None = None


def tune(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    trials: int = 64,
    seconds: float | None = None,
    work_dir: str | Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    progress: bool = False,
    prune: bool = True,
    rpc: str | None = None,
) -> TunedModel:
    """Tune a model on the attached device, or on devices elsewhere.

    Parameters
    ----------
    model
        An ONNX file, or a loaded model.
    target
        What to compile for, e.g. "opencl", "opencl -device=adreno640"; candidates are measured on the attached device. With `rpc` it has to
        name the device ("-device="), unless that is a CPU; its host code is compiled for the server's machine.
    trials
        Candidates to measure over all tasks, those found in `work_dir` included; 0 keeps the default schedules. The first ones
        are the default schedules of each task.
    seconds
        Stop searching after this time; the model is compiled with what was found.
    work_dir
        Folder of the records. A later call with the same folder goes on where this one stopped. None: nothing is kept.
    shapes
        Shape by name, for inputs whose shape the model leaves open.
    seed
        Of the search and of the inputs that candidates are checked with.
    progress
        Show a progress bar on stderr.
    prune
        Try only configs that the facts of the target's device leave sensible (see `pruned_spaces`); the default schedules are tried in any case.
    rpc
        Where the devices are: "host:port/key" of an RPC server (`romou serve`), or "tracker://host:port/key" for all servers under a key of a
        tracker, which candidates are spread over. The model that is returned runs there too.

    Raises
    ------
    UsageError
        A wrong argument.
    ModelError
        The model is missing, broken, or holds an operator that TVM's importer lacks.
    DeviceError
        There is no device, it does not compute a tiny kernel correctly, or no server can be reached any more; what was measured is in `work_dir`.
    CompatError
        The TVM packages are not the pair that this version was made for, or a server has other ones.
    """
    started = time.monotonic()
    options = TuningOptions(trials=trials, seconds=seconds, seed=seed)
    check_versions()
    target = as_target(target)
    imported = _import(model, shapes)
    measuring = MeasureOptions(seed=seed)
    with _local(target, measuring) if rpc is None else _remote(target, measuring, Address.parse(rpc)) as (place, runner):
        graph = _lower(imported, place.target)
        results: Mapping[str, TaskResult] = {}
        if graph.tasks and trials:
            with (
                _records(work_dir) as store,
                contextlib.closing(LocalBuilder(place.target, measuring, compile_for=place.compile_for)) as builder,
            ):
                tasks = [task.pruned() for task in graph.tasks] if prune else graph.tasks
                session = TuningSession(tasks, place.target, store=store, builder=builder, runner=runner, options=options)
                results = session.run(terminal_progress if progress else no_progress)
    try:
        return _assemble(graph, place, results, started)
    finally:
        if place.remote is not None:
            place.remote.release()


def compile(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    shapes: Mapping[str, Sequence[int]] | None = None,
    device: int | None = None,
) -> TunedModel:
    """Compile a model with default schedules; needs no device for a target that names one. Other arguments and errors are those of `tune`.

    Parameters
    ----------
    device
        Index of the attached device that the model is to run on, as `romou devices` lists them: its limits are kept to as well. None:
        compile for the target alone, whether or not such a device is there; if the model is run, it is on the first one.
    """
    started = time.monotonic()
    check_versions()
    target = as_target(target)
    here = target
    if device is not None:
        found = list_devices()
        if not 0 <= device < len(found):
            raise no_device_error(device, found)
        here = target.limited_to(found[device])
    graph = _lower(_import(model, shapes), here)
    place = _Place(named=target, target=here, name="", index=device or 0)
    return _model_of(graph, place, {}, Summary.unmeasured(target=str(target), rows=_rows(graph, {}), seconds=time.monotonic() - started))


def inspect(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    shapes: Mapping[str, Sequence[int]] | None = None,
    work_dir: str | Path | None = None,
    kernel: str | None = None,
    passes: bool = False,
) -> list[InspectedKernel]:
    """Take the kernels of a model apart; needs no device for a target that names one. Other arguments and errors are those of `tune`.

    Parameters
    ----------
    work_dir
        Folder of the records of `tune`: a task with a measured candidate gets the config of the fastest one, whatever device it was
        measured on. None: default schedules.
    kernel
        Name of one kernel, of the function that it belongs to, or of a task; all others are left out.
    passes
        Keep the IR before and after each pass.
    """
    check_versions()
    target = as_target(target)
    graph = _lower(_import(model, shapes), target)
    configs = _recorded_configs(work_dir)
    scheduled = schedule_model(graph.fused, graph.task_of, configs, target)
    functions = {str(f.attrs.get("global_symbol", v.name_hint)): (v.name_hint, f) for v, f in scheduled.functions_items() if isinstance(f, tirx.PrimFunc)}
    found: list[InspectedKernel] = []
    known = set(functions)
    for name, (hint, func) in functions.items():
        task = graph.task_of.get(hint)
        if task is not None:
            known.add(task.name)
        if kernel is not None and not kernel.startswith(name) and (task is None or kernel != task.name):
            continue
        config = (configs.get(task.key) or task.default_config(target)) if task is not None else {}
        kernels = inspect_function(func, target, name=name, task=task.name if task is not None else "", config=config, with_passes=passes)
        known |= {k.name for k in kernels}
        found += [k for k in kernels if kernel is None or kernel in (k.name, name, k.task)]
    if kernel is not None and not found:
        raise unknown_name("kernel", kernel, known)
    return found


def pruned_spaces(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    shapes: Mapping[str, Sequence[int]] | None = None,
    rules: Rules | None = None,
) -> list[tuple[Task, PrunedSpace]]:
    """The knob space of every task of a model, less what the criteria exclude on the target's device; `PrunedSpace.report` counts what went.

    Needs no device for a target that names one. Other arguments and errors are those of `tune`.

    Parameters
    ----------
    rules
        What the criteria leave to choose, e.g. `Rules(is_literal=True)` for the paper's way to count bytes.
    """
    check_versions()
    target = as_target(target)
    return [(task, task.pruned_space(target, rules)) for task in _lower(_import(model, shapes), target).tasks]


def _recorded_configs(work_dir: str | Path | None) -> dict[str, Config | None]:
    """Task key -> config of its fastest record."""
    if work_dir is None:
        return {}
    if not Path(work_dir).is_dir():
        raise UsageError(f"work_dir {str(work_dir)!r} is no folder; give the one that `tune` wrote")
    best: dict[str, tuple[float, Config | None]] = {}
    with RecordStore(work_dir) as store:
        for record in store:
            if record.time_s is not None and record.time_s < best.get(record.task_key, (math.inf, None))[0]:
                best[record.task_key] = (record.time_s, Config(record.config))
    return {key: config for key, (_, config) in best.items()}


def as_target(target: Target | str | Mapping[str, object]) -> Target:
    """A Target from anything that describes one."""
    return target if isinstance(target, Target) else Target(target)


def _import(model: onnx.ModelProto | str | Path, shapes: Mapping[str, Sequence[int]] | None) -> ImportedModel:
    with quiet_stderr():
        return import_onnx(model, shapes)


def _lower(imported: ImportedModel, target: Target) -> _Graph:
    fused = place_images(fuse_operators(pack_channels(imported.mod), target), target)
    tasks, key_of = extract_tasks(fused)
    by_key = {task.key: task for task in tasks}
    limits = limits_of(target)
    for task in tasks if limits.prefers_images else ():
        for name, reason in task.template.kept_in_buffers(limits).items():
            logger.warning("%s: its %s stays in a buffer, an image cannot hold it: %s", task.name, name, reason)
    return _Graph(imported=imported, fused=fused, tasks=tasks, task_of={name: by_key[key] for name, key in key_of.items()})


@contextlib.contextmanager
def _local(target: Target, options: MeasureOptions) -> Iterator[tuple[_Place, Runner]]:
    index = _usable_device(target)
    facts, device = list_devices()[index], f"{target.kind}:{index}"
    with contextlib.closing(LocalRunner(device, options)) as runner:
        compile_for = None if facts["type"] == "cpu" else device
        yield _Place(named=target, target=target.limited_to(facts), name=str(facts["name"]), index=index, compile_for=compile_for), runner


@contextlib.contextmanager
def _remote(target: Target, options: MeasureOptions, address: Address) -> Iterator[tuple[_Place, Runner]]:
    with contextlib.closing(RpcRunner(address, options, device_name=target.device_name)) as runner:
        facts = runner.facts
        named = _for_server(target, facts, runner.host, str(address))
        remote = RemoteDevice(address, named.device_name, wanted=str(facts["name"]))
        yield _Place(named=named, target=named.limited_to(facts), name=str(facts["name"]), remote=remote), runner


def _for_server(target: Target, facts: Mapping[str, Any], host: str, where: str) -> Target:
    """`target` with the device and the host that the server at `where` has."""
    if target.device_name is None:
        if facts["type"] != "cpu":
            raise UsageError(
                f"the target has to name the device at {where}, which is {facts['name']}: {target.kind} -device=NAME; known: {', '.join(known_devices())}",
                hint=f"`archprobe run --rpc {where} -o NAME.json` measures one that is not known.",
            )
        target = Target({**json.loads(target.to_json()), "device": "host"})
    if target.host is not None and target.host.partition("-")[0] != host.partition("-")[0]:
        raise UsageError(f"the target's host is {target.host}, but the machine at {where} is {host}", hint="Leave -host= out.")
    if not is_here(host):
        target = Target(target, host=target.host or host)
        # Before anything is built: without it, every candidate would fail alike.
        compiler_for(str(target.host))
    return target


def _usable_device(target: Target) -> int:
    index = device_index(target.device_name)
    report = check_device(index)
    if not report.is_usable:
        raise DeviceError(f"{report.device} does not work: {report.problem}", hint=report.mend)
    return index


@contextlib.contextmanager
def _records(work_dir: str | Path | None) -> Iterator[RecordStore]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="romou-")) if work_dir is None else work_dir
        if Path(folder).exists() and not Path(folder).is_dir():
            raise UsageError(f"work_dir {str(folder)!r} is a file; give a folder")
        yield stack.enter_context(RecordStore(folder))


def _assemble(graph: _Graph, place: _Place, results: Mapping[str, TaskResult], started: float) -> TunedModel:
    """Compile with the best configs, compare with the default schedules and with onnxruntime."""
    configs = {key: result.config for key, result in results.items()}
    plain = Summary.unmeasured(target=str(place.named), rows=(), seconds=0.0)
    # A task where no config worked is left to TVM in both.
    broken: dict[str, Config | None] = {key: None for key, config in configs.items() if config is None}
    default = _model_of(graph, place, broken, plain)
    is_tuned = any(result.config is not None and not result.is_default for result in results.values())
    tuned = _model_of(graph, place, configs, plain) if is_tuned else default
    default_times, tuned_times = [], []
    for _ in range(WHOLE_MODEL_REPEATS):
        # In turns, so that a slow moment of the machine hits both.
        default_times += default.times(repeat=1)
        tuned_times += tuned.times(repeat=1) if is_tuned else default_times[-1:]
    error, limit = _check(graph, tuned)
    summary = Summary(
        target=str(place.named),
        device=place.name,
        rows=_rows(graph, results),
        default_ms=float(np.median(default_times)),
        tuned_ms=float(np.median(tuned_times)),
        relative_l2_error=error,
        tolerance=limit,
        outcomes=_count_outcomes(results),
        seconds=time.monotonic() - started,
    )
    return tuned.with_summary(summary)


def _model_of(graph: _Graph, place: _Place, configs: Mapping[str, Config | None], summary: Summary) -> TunedModel:
    def compiled(target: Target) -> relax.VMExecutable:
        return compile_model(graph.fused, graph.task_of, configs, target)

    return TunedModel(
        compiled(place.target),
        target=place.named,
        inputs=graph.imported.inputs,
        outputs=graph.imported.outputs,
        summary=summary,
        device_index=place.index,
        remote=place.remote,
        rebuild=lambda host: compiled(Target(place.target, host=host)),
    )


def _check(graph: _Graph, model: TunedModel) -> tuple[float | None, float | None]:
    """(relative L2 error of the worst output against onnxruntime, what it may be); None where onnxruntime cannot run the model."""
    inputs = random_inputs(graph.imported.inputs, seed=0)
    reference = run_onnxruntime(graph.imported.onnx_model, inputs)
    if reference is None:
        return None, None
    error = max(relative_l2_error(a, b) for a, b in zip(model.run(inputs), reference, strict=True))
    limit = max(TOLERANCE.get(str(output.dtype), TOLERANCE["float32"]) for output in reference)
    if not error <= limit:
        logger.warning("the model's outputs differ from onnxruntime's by %.2e (relative L2); the limit is %.0e", error, limit)
    return error, limit


def _rows(graph: _Graph, results: Mapping[str, TaskResult]) -> tuple[LayerRow, ...]:
    rows = []
    for task in graph.tasks:
        result = results.get(task.key)
        rows.append(
            LayerRow(
                name=task.name,
                calls=task.calls,
                trials=result.trials if result else 0,
                flops=task.flops,
                default_ms=result.default_ms if result else None,
                tuned_ms=result.best_ms if result else None,
                config=dict(result.config) if result and result.config else {},
            )
        )
    return tuple(rows)


def _count_outcomes(results: Mapping[str, TaskResult]) -> dict[str, int]:
    total: dict[str, int] = {}
    for result in results.values():
        for outcome, count in result.outcomes.items():
            total[outcome] = total.get(outcome, 0) + count
    return total
