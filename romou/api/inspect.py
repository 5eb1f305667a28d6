"""romou.inspect and romou.memory_plan: a model's kernels and its memory, taken apart without a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from romou.base.arguments import path_of
from romou.base.checked_options import documents_options, takes_options
from romou.base.errors import UsageError, unknown_name
from romou.compiler.compilation import Compilation
from romou.compiler.dumps import ALL, Dumps, dumping
from romou.compiler.graph.memory.memory import MemoryPlan
from romou.compiler.pipeline import STAGE_NAMES
from romou.devices.mobile_compilers import GPUS, OWN, compile_all, find_compilers, mobile_gpu
from romou.devices.targets import gpu_for
from romou.driver.lowering import lowered_model
from romou.driver.options import InspectOptions, ModelOptions, RecordedOptions, SimulateOptions
from romou.driver.search.records import recorded_configs
from romou.driver.summary import nodes_of_functions, nodes_of_tasks, planned_memory
from romou.tools.inspection.execute import ExecutedFunction, execute_function
from romou.tools.inspection.kernels import InspectedKernel, inspect_function
from romou.tools.inspection.why import DefaultReasons, reasons_for_default

if TYPE_CHECKING:
    import onnx

    from romou.compiler.assembly.assemble import ScheduledFunction


@takes_options(InspectOptions)
def inspect(model: onnx.ModelProto | str | Path, options: InspectOptions) -> list[InspectedKernel]:
    """Take the kernels of a model apart: source, estimates, IR. Nothing runs.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or "bundled:NAME" for a bundled network.

    Raises
    ------
    UsageError
        A wrong argument, or no kernel of that name. The message has the nearest name.
    ModelError
        The model is missing, broken, or holds an operator that TVM's importer lacks.
    DeviceError
        The target names no device and none is attached.
    CompatError
        The TVM packages are not the pair that this version was made for.
    RecordError
        The records in `work_dir` are unreadable.
    """
    return [
        kernel
        for function, kernels in _inspected(model, options)
        for kernel in kernels
        if options.kernel in (None, kernel.name, function.name, kernel.task)
    ]


def _inspected(
    model: onnx.ModelProto | str | Path, options: InspectOptions
) -> list[tuple[ScheduledFunction, list[InspectedKernel]]]:
    """Return the functions of a model with a kernel of the name `options.kernel`, each with all its kernels."""
    compilation, kernel = _compilation_of(model, options), options.kernel
    functions, nodes = compilation.scheduled_functions(), nodes_of_functions(compilation)
    found: list[tuple[ScheduledFunction, list[InspectedKernel]]] = []
    names = {function.name for function in functions}
    for function in functions:
        task = function.task.name if function.task is not None else ""
        names |= {task} - {""}
        if kernel is not None and not kernel.startswith(function.name) and kernel != task:
            continue
        inspected = inspect_function(
            function.func,
            compilation.target,
            name=function.name,
            task=task,
            config=function.config,
            with_passes=options.passes,
            nodes=nodes.get(function.hint, ()),
        )
        names |= {k.name for k in inspected}
        if any(kernel in (None, each.name, function.name, each.task) for each in inspected):
            found.append((function, inspected))
    if kernel is not None and not found:
        raise unknown_name("kernel", kernel, names)
    return found


@takes_options(SimulateOptions)
def simulate(model: onnx.ModelProto | str | Path, options: SimulateOptions) -> list[ExecutedFunction]:
    """Execute a model's kernels as machine code of an Adreno, and compare their outputs. No device is needed.

    The machine code is that of Mesa's compiler, not of Qualcomm's. Each function runs on random inputs, and its output
    is compared with that of the unscheduled function. The result also says what the waves did, and which level of the
    target's caches their loads come from.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or "bundled:NAME" for a bundled network.

    Raises
    ------
    UsageError, ModelError, DeviceError, CompatError, RecordError
        As in `inspect`. UsageError also for a GPU that is no Adreno.
    BuildError
        Mesa's compilers have not been set up.
    """
    target = options.parsed_target()
    gpu = gpu_for(options.gpu or OWN, target)
    if mobile_gpu(gpu).vec4_registers is None:
        raise UsageError(
            f"the simulator executes Adreno's machine code only, not that of {GPUS[gpu]}",
            hint="Name an Adreno that Mesa compiles for, e.g. a630 or a740.",
        )
    find_compilers(mesa=mobile_gpu(gpu).mesa)
    functions = _inspected(model, options)
    sources = list(dict.fromkeys(kernel.source for _, kernels in functions for kernel in kernels))
    compiled = dict(zip(sources, compile_all(sources, gpu), strict=True))
    return [
        execute_function(
            function, kernels, compiled, gpu, spec=target.similar_spec, most_items=options.work_items or None
        )
        for function, kernels in functions
    ]


@takes_options(RecordedOptions)
def memory_plan(model: onnx.ModelProto | str | Path, options: RecordedOptions) -> MemoryPlan:
    """Return the device memory of a model: weights, and each tensor between kernels with the calls that need it.

    Nothing runs. An image counts with the bytes of its texels. A buffer that tensors share has the pitch of their rows.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or "bundled:NAME" for a bundled network.

    Raises
    ------
    UsageError, ModelError, DeviceError, CompatError, RecordError
        As in `inspect`.
    """
    return planned_memory(_compilation_of(model, options))


@documents_options(RecordedOptions)
def dump_stages(
    model: onnx.ModelProto | str | Path,
    folder: str | Path,
    stages: str = ALL,
    **keywords: Any,
) -> list[Path]:
    """Compile a model and write the module after each stage of the compiler to a text file. Nothing runs.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or "bundled:NAME" for a bundled network.
    folder
        Folder of the files. It is made if it does not exist.
    stages
        Names of stages, separated by commas, or "all".

    Raises
    ------
    UsageError
        A wrong argument, no stage of that name, or files that cannot be written.
    ModelError, DeviceError, CompatError, RecordError
        As in `inspect`.
    """
    options = RecordedOptions.from_dict(keywords, "dump_stages")
    with dumping(Dumps.of(stages, Path(folder), STAGE_NAMES)) as dumps:
        _compilation_of(model, options).assembled()
    return sorted(dumps.files)


def explain_default(model: onnx.ModelProto | str | Path, layer: str, options: ModelOptions) -> list[DefaultReasons]:
    """Return why a layer has its default config: the terms of its estimate, and those of the best other configs.

    Nothing is compiled. Layers that differ only in what follows have one name, and an entry each.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or "bundled:NAME" for a bundled network.
    layer
        Name of a layer, as `romou check` prints it, or of one of its ONNX nodes.
    options
        The model's import and target.

    Raises
    ------
    UsageError
        A wrong argument, no layer of that name, or a device whose times are not estimated.
    ModelError, DeviceError, CompatError
        As in `inspect`.
    """
    compilation = lowered_model(model, options)
    nodes = nodes_of_tasks(compilation)
    named = [(task, nodes.get(task.key, ())) for task in compilation.tasks]
    chosen = [(task, own) for task, own in named if layer == task.name or layer in own]
    if not chosen:
        raise unknown_name("layer", layer, {task.name for task, _ in named})
    return [reasons_for_default(task, compilation.target, own) for task, own in chosen]


def _compilation_of(model: onnx.ModelProto | str | Path, options: RecordedOptions) -> Compilation:
    """Return the lowered model with recorded configs, and with pairs joined that were faster as one kernel."""
    if options.work_dir is not None:
        path_of("work_dir", options.work_dir)
    compilation = lowered_model(model, options)
    seconds, configs = recorded_configs(options.work_dir, compilation, compilation.target)
    return compilation.joined_where_faster(seconds).with_configs(configs)
