"""romou.tune: from an ONNX model to a tuned module, the stages in order. See ARCHITECTURE.md for what each one does."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from romou.base.arguments import whole_of
from romou.base.errors import UsageError
from romou.compiler.frontend import ImportedModel, Precision
from romou.compiler.graph import tasks_of
from romou.devices.targets import Target
from romou.driver.assemble import assemble
from romou.driver.fit import fitting
from romou.driver.graph import Graph, import_model, lower
from romou.driver.place import Place, allowing_tf32, as_target, check_usable, local_place, local_runner, remote_runner
from romou.driver.records import open_records
from romou.runtime.module import TunedModel
from romou.runtime.rpc import Address
from romou.runtime.workers import nursery
from romou.tuner.measure import Builder, LocalBuilder, MeasureOptions
from romou.tuner.pruning.tasks import pruned_task
from romou.tuner.records.task_files import keep_tasks, other_tasks
from romou.tuner.search import (
    NoProgress,
    TaskResult,
    Trial,
    TrialCallback,
    TuningOptions,
    TuningSession,
    terminal_progress,
)
from romou.tuner.search.pretrained import pretrained_for
from tvm_patches.compat import check_versions

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from romou.compiler.task import TunableTask


def tune(
    model: onnx.ModelProto | str | Path | ImportedModel,
    *,
    target: Target | str | Mapping[str, object] = "opencl",
    trials: int = 64,
    seconds: float | None = None,
    no_progress: int | None = None,
    work_dir: str | Path | Literal[False] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, object] | None = None,
    precision: str = "float32",
    io_precision: str | None = None,
    calibration: Sequence[Mapping[str, np.ndarray]] | None = None,
    seed: int = 0,
    progress: bool = False,
    prune: bool = True,
    allow_tf32: bool = False,
    explorer: str = "evolution",
    rpc: str | None = None,
    builders: str | None = None,
    trust_builders: bool = False,
    measure: MeasureOptions | Mapping[str, object] | None = None,
    callback: TrialCallback | None = None,
    verify: bool = True,
    strict: bool = False,
    max_memory: int | None = None,
) -> TunedModel:
    """Tune a model on the attached device, or on devices elsewhere.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or what `romou.training.gradients` and `romou.operators` make.
    target
        What to compile for, e.g. "opencl", "opencl -device=adreno640", "cuda"; candidates are measured on the attached
        device. With `rpc` it has to name the device ("-device="), unless that is a CPU; its host code is compiled for
        the server's machine.
    trials
        Candidates to measure over all tasks, those found in `work_dir` included; 0 keeps the default schedules. The
        first ones are the default schedules of each task; those that move less than 64 KiB and sum no products keep
        them, without a trial. A depthwise convolution and the pointwise one behind it are tasks by themselves and, as
        one kernel, a third one: the model takes what is faster.
    seconds
        Stop searching after this time; the model is compiled with what was found.
    no_progress
        Stop searching after so many trials in a row of which none made its task 1% faster; None: go on.
    work_dir
        Folder of the records. A later call with the same folder goes on where this one stopped; one for another model
        measures no kernel again that both have, and learns from the others, also while both run. None: a folder of the
        user's cache, named by the model's kernels and the target, so the same model for the same target goes on by
        itself (ROMOU_CACHE_DIR, else $XDG_CACHE_HOME/romou or ~/.cache/romou); `summary().records` says which. False:
        nothing is kept.
    shapes
        Shape by name, for inputs whose shape the model leaves open.
    constants
        Value by name, for inputs that become constants of the model: it has no such input, and a condition or a count
        that depends on one is folded.
    precision
        What the model computes with: "float32" leaves its types as they are; "float16" makes an fp32 model one of fp16;
        "mixed" keeps in fp32 what a check of the whole model against onnxruntime shows to be sensitive. See
        docs/precision.md.
    io_precision
        "float16": float inputs and outputs are fp16, too. None: as the model has them.
    calibration
        Inputs, each as {name: array}, on which ranges and errors are found, and outputs are checked with the first.
        None: random ones.
    seed
        Seed of the search and of the inputs that candidates are checked with.
    progress
        Show a progress bar on stderr.
    prune
        Try only configs that the facts of the target's device leave sensible (see `pruned_spaces`); the default
        schedules are tried in any case.
    allow_tf32
        Kernels may multiply floats on tensor cores (CUDA, compute capability 8.0 and newer), which round them to TF32,
        10 bits behind the point; sums stay in single precision. Such a kernel may differ from the reference by a
        relative L2 error of 2e-3 instead of 1e-4, the whole model's outputs from onnxruntime's by 1e-2. Equal to the
        target option -tf32=allow, which the other functions take: without it, records of such kernels do not count.
    explorer
        How configs are chosen: "evolution" or "annealing", both guided by the cost model, "random" or "exhaustive".
    rpc
        Where the devices are: "host:port/key" of an RPC server (`romou serve`), or "tracker://host:port/key" for all
        servers under a key of a tracker, which candidates are spread over. The model that is returned runs there too.
    builders
        Where candidates are built: "dask://host:port" of a dask scheduler, whose workers run the same Romou and TVM;
        they may come and go. None: in processes of this machine. The results are the same. Over a network:
        "dask+tls://host:port", with certificates in dask's configuration.
    trust_builders
        Take a scheduler of another machine without TLS. It, and whoever is in between, can run any code in this
        process.
    measure
        Time limits in seconds and repeats of a measurement, as `MeasureOptions` or a mapping of its fields; its seed
        replaces `seed` for the inputs.
    callback
        Called with each finished `Trial`, after its record is kept. When it returns True, the search ends and the model
        is compiled with what was found. An exception ends the search too and comes out of `tune`; a later call goes on
        from the records.
    verify
        Raise where the tuned model's outputs are not onnxruntime's. False: it is returned even so, with a warning;
        `summary().is_right` says whether they are.
    strict
        Raise where a node has no kernel, instead of running it on the host, by onnxruntime, between kernels. With `rpc`
        that is always so. It may turn out after the first trials.
    max_memory
        Bytes of the device's memory that the tuned model may take: weights, and all between its kernels. Where configs
        need more, those with the largest workspaces give way to a direct algorithm. None: no limit.

    Raises
    ------
    UsageError
        A wrong argument; an unknown field of `measure` fails with the nearest name.
    ModelError
        The model is missing or broken, or a node has no kernel, and onnxruntime cannot run it either or `strict`
        forbids it; or it takes more than `max_memory` even so.
    NumericError
        The outputs are wrong; names the first ONNX operator whose output is. Records are kept.
    DeviceError
        There is no device, it does not compute a tiny kernel correctly, or no server, or no worker of `builders`, can
        be reached any more; records are kept.
    RecordError
        The records in `work_dir` are unreadable.
    CompatError
        The TVM packages are not the pair that this version was made for, or a server or a worker of `builders` has
        other ones.
    """
    started = time.monotonic()
    check_versions()
    target = allowing_tf32(as_target(target)) if allow_tf32 else as_target(target)
    if callback is not None and not callable(callback):
        raise UsageError(f"callback={callback!r}: must be a function that takes a Trial")
    max_memory = None if max_memory is None else whole_of("max_memory", max_memory, lowest=1)
    options = TuningOptions(
        trials=trials,
        seconds=seconds,
        no_progress=no_progress,
        explorer=explorer,
        seed=seed,
        **target.backend.search_options,
    )
    measuring = _measuring(measure, seed)
    address = None if rpc is None else Address.parse(rpc)
    if trials:
        nursery.begin()
    # The device is looked for while the model is imported, and tried until candidates are there.
    probe = ThreadPoolExecutor(2, thread_name_prefix="romou-probe")
    placed = None if address is not None else probe.submit(local_place, target)
    tried = None if placed is None else probe.submit(_try, placed)
    probe.shutdown(wait=False)
    imported = import_model(model, shapes, Precision.checked(precision, io_precision, calibration), constants)
    if address is not None:
        where = remote_runner(target, measuring, address)
    else:
        assert placed is not None
        where = local_runner(placed.result(), measuring)
    with (
        where as (place, runner),
        ThreadPoolExecutor(1, thread_name_prefix="romou-identify") as threads,
        _held_back() as (later, go_on),
    ):
        # The process that runs candidates starts while the graph is lowered.
        identified = threads.submit(runner.fingerprint) if trials else None
        # Kernels of a CPU are timed on the cores that compile. A budget of memory is kept to before the long part.
        is_apart = trials > 0 and max_memory is None and place.device is not None and not place.device.is_host_cpu
        pretrained = pretrained_for(place.target)
        if pretrained is not None and is_apart:
            later.submit(pretrained.read)

        def searched(graph: Graph) -> tuple[Mapping[str, TaskResult], Path | None]:
            worth = [task for task in graph.tasks if not task.is_small]
            if not worth or not trials:
                return {}, None
            with (
                open_records(work_dir, graph, place.named) as (store, folder),
                contextlib.closing(_builder(builders, place, measuring, is_trusted=trust_builders)) as builder,
            ):
                worth += tasks_of(graph.pairs)
                tasks = [pruned_task(task, place.target) for task in worth] if prune else worth
                learn_from: Callable[[Counter[str]], Sequence[TunableTask]] = lambda _: ()
                # A folder that the user named may be that of many models.
                if work_dir and folder is not None:
                    keep_tasks(folder, tasks)
                    learn_from = functools.partial(other_tasks, folder)
                session = TuningSession(
                    tasks,
                    place.target,
                    store=store,
                    builder=builder,
                    runner=runner,
                    options=options,
                    alternatives=graph.alternatives,
                    learn_from=learn_from,
                    pretrained=pretrained,
                    callback=_until_known(graph, callback) if is_apart else callback,
                    meanwhile=go_on,
                )
                return session.run(terminal_progress if progress else NoProgress), folder

        is_strict = strict or rpc is not None
        graph = lower(imported, place.target, strict=is_strict, executor=later if is_apart else None)
        if not is_apart:
            fitting(graph, {}, place.target, max_memory)
        # In this order: what is wrong with a device is told by its trial.
        for done in (tried, identified):
            if done is not None:
                done.result()
        try:
            results, folder = searched(graph)
        except Exception:
            go_on()
            # What cannot be compiled may have no reference either.
            if not _is_broken(graph):
                raise
        go_on()
        if _is_broken(graph):
            # Some of its nodes go to the host, and the other kernels have records.
            graph = lower(imported, place.target, strict=is_strict)
            fitting(graph, {}, place.target, max_memory)
            results, folder = searched(graph)
    try:
        return assemble(graph, place, results, started, folder, max_memory, verify=verify)
    finally:
        if place.remote is not None:
            place.remote.release()


@contextlib.contextmanager
def _held_back() -> Iterator[tuple[Executor, Callable[[], None]]]:
    """A thread for what can wait until candidates are being built, and the function that lets it begin: before, it
    would take time from the first of them.

    After an exception what has not begun is dropped.
    """
    may_begin = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="romou-later") as executor:
        executor.submit(may_begin.wait)
        try:
            yield executor, may_begin.set
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            may_begin.set()


def _try(placed: Future[Place]) -> None:
    check_usable(placed.result())


def _is_broken(graph: Graph) -> bool:
    """Whether the model cannot be compiled as it is, once that is known."""
    return graph.compiling is not None and graph.compiling.exception() is not None


def _until_known(graph: Graph, callback: TrialCallback | None) -> TrialCallback:
    """`callback`, which also ends the search once it is known that the model, compiled meanwhile, is none; ModelError
    where a tensor of it is too large.
    """
    unchecked = [graph]

    def called(trial: Trial) -> bool | None:
        answer = None if callback is None else callback(trial)
        if unchecked and graph.compiling is not None and graph.compiling.done():
            unchecked.clear()
            if _is_broken(graph):
                return True
            assert graph.compiled_for is not None
            fitting(graph, {}, graph.compiled_for, None)
        return answer

    return called


def _builder(builders: str | None, place: Place, options: MeasureOptions, *, is_trusted: bool) -> Builder:
    if builders is None:
        return LocalBuilder(place.target, options, compile_for=place.compile_for)
    from romou.tuner.measure.dask_builder import DaskBuilder

    return DaskBuilder(builders, place.target, options, is_trusted=is_trusted)


def _measuring(measure: MeasureOptions | Mapping[str, object] | None, seed: int) -> MeasureOptions:
    if measure is None:
        return MeasureOptions(seed=seed)
    if isinstance(measure, MeasureOptions):
        return measure
    if not isinstance(measure, Mapping):
        raise UsageError(f"measure={measure!r}: expected MeasureOptions or a mapping of its fields")
    return MeasureOptions.from_dict({"seed": seed, **measure})
