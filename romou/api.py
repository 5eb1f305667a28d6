"""From an ONNX model to a tuned module: the stages in order. See ARCHITECTURE.md for what each one does."""

from __future__ import annotations

import contextlib
import functools
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax

from romou.core.errors import DeviceError, UsageError, unknown_name
from romou.core.linking import compiler_for, is_here
from romou.core.space import Config
from romou.core.version import __version__
from romou.frontend import import_onnx
from romou.frontend.reference import relative_l2_error, run_onnxruntime
from romou.hardware import known_devices
from romou.inspection.kernels import InspectedKernel, inspect_function
from romou.layout import Pair, find_pairs, fuse_operators, join_pairs, pack_channels, place_images, share_buffers, tasks_of
from romou.measure import DeviceFingerprint, LocalBuilder, LocalRunner, MeasureOptions, RpcRunner, Runner
from romou.module import LayerRow, Summary, TunedModel, compile_model, random_inputs, scheduled_functions
from romou.module.remote import RemoteDevice
from romou.pruning import PrunedSpace, Rules
from romou.records import RecordStore
from romou.regression import Bench, Comparison, compare_benches, compare_recorded, load_module, operators_of, parse_threshold, time_in_turns, with_times
from romou.regression.comparison import IN_TURNS, STAGES, common_operators, compiled_elsewhere, open_names, refusal_of_recorded, time_verdicts
from romou.rpc import Address
from romou.search import TaskResult, TuningOptions, TuningSession, quiet_progress, terminal_progress
from romou.search.pretrained import pretrained_for
from romou.target import Target
from romou.tasks.extract import count_calls, extract_tasks
from romou.tvm_patches.compat import check_versions
from romou.tvm_patches.quiet import quiet_stderr

if TYPE_CHECKING:
    from typing import TypeGuard

    import onnx

    from romou.frontend import ImportedModel
    from romou.tasks.tunable import TunableTask

logger = logging.getLogger("romou")

# Of the whole model's outputs against onnxruntime; half-precision storage rounds at every layer.
# TF32 rounds factors to as many bits as halfs have, but nothing that lies in memory.
TOLERANCE = {"float32": 1e-4, "tf32": 1e-2, "float16": 2e-2}
WHOLE_MODEL_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class _Graph:
    """A model as far as it goes without a config: fused functions and the tasks among them (function name -> task).

    placed: fused functions before tensors became parts of others.
    """

    imported: ImportedModel
    placed: tvm.IRModule
    fused: tvm.IRModule
    tasks: list[TunableTask]
    task_of: dict[str, TunableTask]

    @classmethod
    def of(cls, imported: ImportedModel, placed: tvm.IRModule) -> _Graph:
        fused = share_buffers(placed)
        tasks, key_of = extract_tasks(fused)
        by_key = {task.key: task for task in tasks}
        task_of = {name: by_key[key] for name, key in key_of.items()}
        return cls(imported=imported, placed=placed, fused=fused, tasks=tasks, task_of=task_of)

    @functools.cached_property
    def pairs(self) -> list[Pair]:
        """Functions of `placed` that could share a kernel; which do is measured. Of a graph in which some are joined nobody asks."""
        return find_pairs(self.placed)

    @functools.cached_property
    def alternatives(self) -> dict[str, tuple[str, str]]:
        """Key of a joined task -> keys of the two tasks that it stands for."""
        return {pair.task.key: pair.keys for pair in self.pairs}

    def joined_where(self, is_chosen: Callable[[str], bool]) -> _Graph:
        """The graph with the pairs joined of whose tasks, by key, that is true; itself where that is none."""
        chosen = [pair for pair in self.pairs if is_chosen(pair.task.key)]
        return _Graph.of(self.imported, join_pairs(self.placed, chosen)) if chosen else self

    def joined_where_faster(self, seconds: Mapping[str, float]) -> _Graph:
        """The graph with the pairs joined that take less time as one kernel than as two; seconds: by task key, of those with a kernel that works."""

        def is_faster(key: str) -> bool:
            keys = (key, *self.alternatives[key])
            return all(k in seconds for k in keys) and seconds[keys[0]] < seconds[keys[1]] + seconds[keys[2]]

        return self.joined_where(is_faster)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where candidates are measured and models run.

    named: the target as it was asked for.   target: the same within the limits of the device.   device: None where none was asked.
    index, remote: which device of this machine, or one behind a connection.   compile_for: see `LocalBuilder`.
    """

    named: Target
    target: Target
    device: DeviceFingerprint | None = None
    index: int = 0
    remote: RemoteDevice | None = None
    compile_for: str | None = None

    @property
    def name(self) -> str:
        """The device's own; "" without one."""
        return "" if self.device is None else self.device.name


def tune(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    trials: int = 64,
    seconds: float | None = None,
    no_progress: int | None = None,
    work_dir: str | Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    progress: bool = False,
    prune: bool = True,
    allow_tf32: bool = False,
    explorer: str = "evolution",
    rpc: str | None = None,
) -> TunedModel:
    """Tune a model on the attached device, or on devices elsewhere.

    Parameters
    ----------
    model
        An ONNX file, or a loaded model.
    target
        What to compile for, e.g. "opencl", "opencl -device=adreno640", "cuda"; candidates are measured on the attached device. With `rpc` it has
        to name the device ("-device="), unless that is a CPU; its host code is compiled for the server's machine.
    trials
        Candidates to measure over all tasks, those found in `work_dir` included; 0 keeps the default schedules. The first ones
        are the default schedules of each task; those that move less than 64 KiB and sum no products keep them, without a trial. A depthwise
        convolution and the pointwise one behind it are tasks by themselves and, as one kernel, a third one: the model takes what is faster.
    seconds
        Stop searching after this time; the model is compiled with what was found.
    no_progress
        Stop searching after so many trials in a row of which none made its task 1% faster; None: go on.
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
    allow_tf32
        Kernels may multiply floats on tensor cores (CUDA, compute capability 8.0 and newer), which round them to TF32, 10 bits behind the point; sums
        stay in single precision. Such a kernel may differ from the reference by a relative L2 error of 2e-3 instead of 1e-4, the whole model's outputs
        from onnxruntime's by 1e-2. The same as the target option -tf32=allow, which the other functions take: without it, records of such kernels do not count.
    explorer
        How configs are chosen: "evolution" or "annealing", both guided by the cost model, "random" or "exhaustive".
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
    check_versions()
    target = _allowing_tf32(as_target(target)) if allow_tf32 else as_target(target)
    options = TuningOptions(trials=trials, seconds=seconds, no_progress=no_progress, explorer=explorer, seed=seed, **target.backend.search_options)
    imported = _import(model, shapes)
    measuring = MeasureOptions(seed=seed)
    with _local(target, measuring) if rpc is None else _remote(target, measuring, Address.parse(rpc)) as (place, runner):
        graph = _lower(imported, place.target)
        results: Mapping[str, TaskResult] = {}
        worth = [task for task in graph.tasks if not task.is_small]
        if worth and trials:
            with (
                _records(work_dir) as store,
                contextlib.closing(LocalBuilder(place.target, measuring, compile_for=place.compile_for)) as builder,
            ):
                worth += tasks_of(graph.pairs)
                tasks = [task.pruned(place.target) for task in worth] if prune else worth
                session = TuningSession(
                    tasks,
                    place.target,
                    store=store,
                    builder=builder,
                    runner=runner,
                    options=options,
                    alternatives=graph.alternatives,
                    pretrained=pretrained_for(place.target),
                )
                results = session.run(terminal_progress if progress else quiet_progress)
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
        here = target.limited_to(target.backend.facts(device))
    graph = _lower(_import(model, shapes), here)
    place = _Place(named=target, target=here, index=device or 0)
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
    seconds, configs = _recorded(work_dir, graph, target)
    graph = graph.joined_where_faster(seconds)
    functions = scheduled_functions(graph.fused, graph.task_of, configs, target)
    found: list[InspectedKernel] = []
    known = {one.name for one in functions}
    for one in functions:
        task = one.task.name if one.task is not None else ""
        known |= {task} - {""}
        if kernel is not None and not kernel.startswith(one.name) and kernel != task:
            continue
        kernels = inspect_function(one.func, target, name=one.name, task=task, config=one.config, with_passes=passes)
        known |= {k.name for k in kernels}
        found += [k for k in kernels if kernel is None or kernel in (k.name, one.name, k.task)]
    if kernel is not None and not found:
        raise unknown_name("kernel", kernel, known)
    return found


def pruned_spaces(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    shapes: Mapping[str, Sequence[int]] | None = None,
    rules: Rules | None = None,
) -> list[tuple[TunableTask, PrunedSpace]]:
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


def _recorded(
    work_dir: str | Path | None, graph: _Graph, target: Target, device: DeviceFingerprint | None = None
) -> tuple[dict[str, float], dict[str, Config | None]]:
    """TunableTask key -> seconds and config of its fastest record, of those that the task's space on `target` holds; of joined tasks as well.

    device: records of others do not count; None: all do.
    """
    if work_dir is None:
        return {}, {}
    if not Path(work_dir).is_dir():
        raise UsageError(f"work_dir {str(work_dir)!r} is no folder; give the one that `tune` wrote")
    # The last time of a config counts: it may have been measured again.
    times: dict[str, dict[Config, float | None]] = {}
    spaces = {task.key: task.space(target) for task in (*graph.tasks, *(pair.task for pair in graph.pairs))}
    left_out = 0
    with RecordStore(work_dir) as store:
        for record in store:
            if record.task_key not in spaces or not (device is None or (record.device.get("kind"), record.device.get("name")) == (device.kind, device.name)):
                continue
            if spaces[record.task_key].knows(record.config):
                times.setdefault(record.task_key, {})[Config(record.config)] = record.time_s
            else:
                left_out += 1
    if left_out:
        logger.warning("%d records in %s do not count: made for other knobs than this version and target have", left_out, work_dir)
    timed = {key: [(t, config) for config, t in found.items() if t is not None] for key, found in times.items()}
    fastest = {key: min(found, key=lambda pair: pair[0]) for key, found in timed.items() if found}
    return {key: time_s for key, (time_s, _) in fastest.items()}, {key: config for key, (_, config) in fastest.items()}


def bench(
    model: onnx.ModelProto | str | Path,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    work_dir: str | Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    repeats: int = 16,
    seed: int = 0,
    has_times: bool = True,
    label: str | None = None,
    rpc: str | None = None,
) -> Bench:
    """Compile a model and take the times and the measures that `compare` needs, by operator. Other arguments and errors are those of `tune`.

    Parameters
    ----------
    work_dir
        Folder of the records of `tune`: a task with a record of the attached device gets its best config. None: default schedules.
    repeats
        Rounds. In each, every operator and the whole model are timed once more, in random order, three repeats by the device's events.
    has_times
        False: only what can be read off the kernels; needs no device for a target that names one.
    label
        How the model is named in the bench; by default its path, or the graph's name.
    rpc
        Where the device is, as in `tune`: "host:port/key" or "tracker://host:port/key". None: the attached one.
    """
    target = as_target(target)
    with _timing(target, rpc) as place:
        how: dict[str, Any] = {"shapes": shapes, "repeats": repeats, "seed": seed, "label": label, "place": place if has_times else None}
        return _bench(model, target, work_dir=work_dir, configs=None, **how)


def compare(
    baseline: Bench | str | Path,
    current: Bench | onnx.ModelProto | str | Path,
    *,
    fail_over: float | str = 0.05,
    work_dir: str | Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    repeats: int = 16,
    seed: int = 0,
    has_times: bool = True,
    has_measures: bool = True,
    is_recorded: bool = False,
    label: str | None = None,
    rpc: str | None = None,
) -> Comparison:
    """Hold a model against an earlier bench of it, operator by operator.

    Where the compiled models of both are at hand, they are timed in turns, now, on the attached device: neither another hour nor another machine
    can then pass for a regression. Otherwise the recorded times are compared, in units of the reference model's, if they are of one device; if
    they are not, `Comparison.reason` says so, and only measures are compared.

    Parameters
    ----------
    baseline
        A bench, or the file that `Bench.save` wrote.
    current
        The same, or a model: it is compiled for the baseline's target, with the baseline's configs unless `work_dir` is given.
    fail_over
        Share by which a time or a measure may rise: 0.05 or "5%".
    repeats
        Pairs of the first stage of timing in turns; what stays open is measured with up to four times as many. Or rounds.
    has_times, has_measures
        False: leave times, or measures, out.
    is_recorded
        Compare recorded times, even where both could be timed in turns.
    rpc
        Where the device is, as in `tune`: "host:port/key" or "tracker://host:port/key". None: the attached one. Both sides share one session.

    Raises
    ------
    UsageError
        A file that is no bench, benches of two targets or of nothing in common, or nothing left to compare.
    DeviceError
        Times are wanted and there is no device, or it does not compute a tiny kernel correctly.
    """
    share = parse_threshold(fail_over)
    _check_rounds(repeats)
    if not has_times and not has_measures:
        raise UsageError("neither times nor measures are left to compare")
    before = baseline if isinstance(baseline, Bench) else Bench.load(baseline)
    after = Bench.load(current) if _is_bench_file(current) else current
    target = Target.from_json(before.target)
    with _timing(target, rpc) as place:
        if not isinstance(after, Bench):
            configs = None if work_dir is not None else {o.key: Config(o.config) for o in before.operators if o.config}
            # Timed below, when it is known against what.
            how: dict[str, Any] = {"shapes": shapes, "repeats": 0, "seed": seed, "label": label, "place": place if has_times else None}
            after = _bench(after, target, work_dir=work_dir, configs=configs, **how)
        common_operators(before, after)  # before the long part
        if not has_times:
            return compare_benches(before, after, fail_over=share, reason="times were not asked for")
        modules = (None, None) if is_recorded else (_module_of(before, baseline, place, rpc), _module_of(after, current, place, rpc))
        if modules[0] is not None and modules[1] is not None:
            here = place().device
            assert here is not None
            sides = (modules[0].moved(place().index, place().remote), modules[1].moved(place().index, place().remote))
            try:
                pairs = time_in_turns(before, after, sides, repeats, stages=STAGES, is_open=lambda found: open_names(found, share), seed=seed)
            except RuntimeError as error:
                hint = "Compare the recorded times (is_recorded, --recorded), or save the baseline anew on this device."
                raise DeviceError(f"a compiled model does not run on {here.name}: {str(error).strip().splitlines()[-1]}", hint=hint) from error
            return compare_benches(
                before,
                after,
                fail_over=share,
                times=time_verdicts(pairs, share),
                timing=IN_TURNS,
                reason=compiled_elsewhere(before, here.to_dict()),
                device=here.name,
                has_measures=has_measures,
            )
        missing = "baseline's" if modules[0] is None else "current"
        reason = "that was asked for" if is_recorded else f"the {missing} compiled model is not at hand"
        refusal = refusal_of_recorded(before, after)
        if refusal is not None:
            if not has_measures:
                raise UsageError(f"times cannot be compared: {refusal}", hint="Keep the baseline's .romou folder beside its file: both are timed here then.")
            return compare_benches(before, after, fail_over=share, reason=refusal)
        if after.compiled is not None and not after.model_times_ms:
            after = with_times(after, after.compiled, repeats, seed=seed)
        return compare_recorded(before, after, fail_over=share, reason=reason, has_measures=has_measures)


def _bench(
    model: onnx.ModelProto | str | Path,
    target: Target,
    *,
    work_dir: str | Path | None,
    configs: Mapping[str, Config] | None,
    shapes: Mapping[str, Sequence[int]] | None,
    repeats: int,
    seed: int,
    label: str | None,
    place: Callable[[], _Place] | None,
) -> Bench:
    """See `bench`.

    configs: task key -> config, instead of records; one that the task's space does not hold gives way to the default.
    place: see `_timing`; None: only what can be read off the kernels.
    """
    check_versions()
    if repeats:
        _check_rounds(repeats)
    imported = _import(model, shapes)
    at = _Place(named=target, target=target) if place is None else place()
    graph = _lower(imported, at.target)
    if configs is None:
        seconds, chosen = _recorded(work_dir, graph, at.target, at.device)
        graph = graph.joined_where_faster(seconds)
    else:
        graph = graph.joined_where(configs.__contains__)
        chosen = _valid_configs(graph.tasks, configs, at.target)
    made = Bench(
        model=label or (str(model) if isinstance(model, str | Path) else imported.onnx_model.graph.name),
        target=target.to_json(),
        device=at.device.to_dict() if at.device is not None else None,
        romou=__version__,
        tvm=tvm.__version__,
        time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        operators=operators_of(scheduled_functions(graph.fused, graph.task_of, chosen, at.target), count_calls(graph.fused), at.target),
    )
    if place is None:
        return made
    compiled = _model_of(graph, at, chosen, Summary.unmeasured(target=str(at.named), rows=_rows(graph, {}), seconds=0.0))
    made = replace(made, compiled=compiled)
    return with_times(made, compiled, repeats, seed=seed) if repeats else made


def _valid_configs(tasks: Sequence[TunableTask], configs: Mapping[str, Config], target: Target) -> dict[str, Config | None]:
    found: dict[str, Config | None] = {}
    for task in tasks:
        if task.key in configs:
            if task.space(target).knows(configs[task.key]):
                found[task.key] = configs[task.key]
            else:
                logger.warning("%s: the baseline's config is none of its space any more; the default is taken", task.name)
    return found


def _is_bench_file(given: object) -> TypeGuard[str | Path]:
    return isinstance(given, str | Path) and str(given).endswith(".json")


def _check_rounds(repeats: int) -> None:
    if not isinstance(repeats, int) or repeats < 8:
        raise UsageError(f"repeats={repeats!r}: must be a whole number, at least 8: fewer can prove no difference", value=repeats)


def _module_of(made: Bench, given: object, place: Callable[[], _Place], rpc: str | None) -> TunedModel | None:
    if made.compiled is not None or not isinstance(given, str | Path):
        return made.compiled
    return load_module(made, given, device=lambda: place().index, rpc=rpc)


def _allowing_tf32(target: Target) -> Target:
    if all(option.name != "tf32" for option in target.backend.options):
        raise UsageError(f"TF32 is a format of NVIDIA's tensor cores; the target is {str(target)!r}", hint="Leave allow_tf32 out, or use target 'cuda'.")
    return target.with_options(tf32="allow")


def as_target(target: Target | str | Mapping[str, object]) -> Target:
    """A Target from anything that describes one."""
    return target if isinstance(target, Target) else Target(target)


def _import(model: onnx.ModelProto | str | Path, shapes: Mapping[str, Sequence[int]] | None) -> ImportedModel:
    with quiet_stderr():
        return import_onnx(model, shapes)


def _lower(imported: ImportedModel, target: Target) -> _Graph:
    graph = _Graph.of(imported, place_images(fuse_operators(pack_channels(imported.mod), target), target))
    limits = target.limits
    for task in graph.tasks if limits.prefers_images else ():
        for name, reason in task.template.kept_in_buffers(limits).items():
            logger.warning("%s: its %s stays in a buffer, an image cannot hold it: %s", task.name, name, reason)
    return graph


@contextlib.contextmanager
def _timing(target: Target, rpc: str | None) -> Iterator[Callable[[], _Place]]:
    """Gives where models are timed, which is looked for once it is asked; what a connection holds is let go of at the end."""
    address = None if rpc is None else Address.parse(rpc)
    with contextlib.ExitStack() as stack:

        @functools.cache
        def place() -> _Place:
            if address is None:
                return _local_place(target)
            found, _ = stack.enter_context(_remote(target, MeasureOptions(), address))
            assert found.remote is not None
            stack.callback(found.remote.release)
            return found

        yield place


def _local_place(target: Target) -> _Place:
    index = _usable_device(target)
    facts = target.backend.facts(index)
    compile_for = None if facts["type"] == "cpu" else f"{target.kind}:{index}"
    device = DeviceFingerprint.of_facts(target.kind, facts)
    return _Place(named=target, target=target.limited_to(facts), device=device, index=index, compile_for=compile_for)


@contextlib.contextmanager
def _local(target: Target, options: MeasureOptions) -> Iterator[tuple[_Place, Runner]]:
    place = _local_place(target)
    with contextlib.closing(LocalRunner(f"{target.kind}:{place.index}", options)) as runner:
        yield place, runner


@contextlib.contextmanager
def _remote(target: Target, options: MeasureOptions, address: Address) -> Iterator[tuple[_Place, Runner]]:
    with contextlib.closing(RpcRunner(address, options, kind=target.kind, device_name=target.device_name)) as runner:
        facts = runner.facts
        named = _for_server(target, facts, runner.host, str(address))
        remote = RemoteDevice(address, named.device_name, kind=target.kind, wanted=str(facts["name"]))
        yield _Place(named=named, target=named.limited_to(facts), device=runner.fingerprint(), remote=remote), runner


def _for_server(target: Target, facts: Mapping[str, Any], host: str, where: str) -> Target:
    """`target` with the device and the host that the server at `where` has."""
    if target.device_name is None:
        if facts["type"] != "cpu":
            raise UsageError(
                f"the target has to name the device at {where}, which is {facts['name']}: {target.kind} -device=NAME; known: {', '.join(known_devices())}",
                hint=f"`archprobe run --rpc {where} -o NAME.json` measures one that is not known.",
            )
        target = target.with_options(device="host")
    if target.host is not None and target.host.partition("-")[0] != host.partition("-")[0]:
        raise UsageError(f"the target's host is {target.host}, but the machine at {where} is {host}", hint="Leave -host= out.")
    if not is_here(host):
        target = Target(target, host=target.host or host)
        # Before anything is built: without it, every candidate would fail alike.
        compiler_for(str(target.host))
    return target


def _usable_device(target: Target) -> int:
    index = target.backend.device_index(target.device_name)
    report = target.backend.check_device(index)
    if not report.is_usable:
        raise DeviceError(f"{report.device} does not work: {report.problem}", hint=report.hint)
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
    joined = graph.joined_where_faster({key: result.best_ms / 1e3 for key, result in results.items() if result.best_ms is not None})
    is_tuned = joined is not graph or any(results[t.key].config is not None and not results[t.key].is_default for t in graph.tasks if t.key in results)
    tuned = _model_of(joined, place, configs, plain) if is_tuned else default
    default_times, tuned_times = [], []
    for _ in range(WHOLE_MODEL_REPEATS):
        # In turns, so that a slow moment of the machine hits both.
        default_times += default.times(repeat=1)
        tuned_times += tuned.times(repeat=1) if is_tuned else default_times[-1:]
    error, limit = _check(graph, tuned, "tf32" if place.target.limits.allows_tf32 else "float32")
    summary = Summary(
        target=str(place.named),
        device=place.name,
        rows=_rows(joined, results, graph.alternatives),
        default_ms=float(np.median(default_times)),
        tuned_ms=float(np.median(tuned_times)),
        relative_l2_error=error,
        tolerance=limit,
        outcomes=_count_outcomes(results),
        seconds=time.monotonic() - started,
        launching=tuned.launching,
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


def _check(graph: _Graph, model: TunedModel, precision: str) -> tuple[float | None, float | None]:
    """(relative L2 error of the worst output against onnxruntime, what it may be where floats are multiplied in `precision`); None where onnxruntime
    cannot run the model."""
    inputs = random_inputs(graph.imported.inputs, seed=0)
    reference = run_onnxruntime(graph.imported.onnx_model, inputs)
    if reference is None:
        return None, None
    error = max(relative_l2_error(a, b) for a, b in zip(model.run(inputs), reference, strict=True))
    limit = max(TOLERANCE[precision], *(TOLERANCE.get(str(output.dtype), 0.0) for output in reference))
    if not error <= limit:
        logger.warning("the model's outputs differ from onnxruntime's by %.2e (relative L2); the limit is %.0e", error, limit)
    return error, limit


def _rows(graph: _Graph, results: Mapping[str, TaskResult], alternatives: Mapping[str, tuple[str, str]] | None = None) -> tuple[LayerRow, ...]:
    """One for each task of `graph`; before it was tuned, one that stands for two others took what they do."""

    def default_ms(key: str) -> float | None:
        found = [results[k].default_ms if k in results else None for k in (alternatives or {}).get(key, (key,))]
        return None if None in found else sum(found)  # type: ignore[arg-type]

    rows = []
    for task in graph.tasks:
        result = results.get(task.key)
        rows.append(
            LayerRow(
                name=task.name,
                calls=task.calls,
                trials=result.trials if result else 0,
                flops=task.flops,
                default_ms=default_ms(task.key),
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
