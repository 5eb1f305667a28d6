"""romou.check: a model judged for a device in seconds, without the device and without compiling a kernel."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from romou.base.checked_options import takes_options
from romou.base.compat import check_versions
from romou.base.errors import DeviceError, ModelError
from romou.compiler.budget import check_sizes
from romou.compiler.compilation import Compilation
from romou.compiler.frontend.host_groups import node_name
from romou.compiler.frontend.precision import fp16_error
from romou.devices.targets import device_text
from romou.driver.options import CheckOptions
from romou.driver.summary import unmeasured
from romou.tools.inspection.check_report import (
    CheckReport,
    checked_layers,
    host_nodes,
    largest_tensor,
    on_cpus,
    precision_lines,
    quirk_lines,
    remarks_on,
)
from romou.tools.inspection.litert import litert_lines

if TYPE_CHECKING:
    import onnx

    from romou.compiler.frontend.imported import ImportedModel

_MIB = 1 << 20


@takes_options(CheckOptions)
def check(model: onnx.ModelProto | str | Path | ImportedModel, options: CheckOptions) -> CheckReport:
    """Say which nodes of a model run on a device, how long they take by the estimate, and what stands in the way.

    Nothing is compiled, and no device is needed for a target or `device` that names one. onnxruntime runs the model
    on this machine's CPU, to see whether fp16 is exact enough and how long the CPU takes.

    Parameters
    ----------
    model
        An ONNX file, a loaded model, or "bundled:NAME" for a bundled network.

    Raises
    ------
    UsageError
        A wrong argument.
    ModelError
        The model is missing or broken, or a node has no kernel and onnxruntime cannot run it either.
    DeviceError
        The target names no device and none is attached.
    CompatError
        The TVM packages are not the pair that this version was made for.
    """
    started = time.monotonic()
    check_versions()
    target, index = options.parsed_target(), options.device_index()
    facts = None
    if index is not None or target.device_name is None:
        facts = target.backend.facts(target.backend.device_index(None) if index is None else index)
        target = target.limited_to(facts)
    imported = options.imported(model)
    compilation = Compilation.of(imported, target).lowered()
    summary = unmeasured(compilation, target)
    layers = checked_layers(compilation, {row.key: row.nodes for row in summary.rows})
    memory, largest = largest_tensor(compilation)
    report = CheckReport(
        target=str(target),
        device=device_text(target, index, is_timed=False) or target.spec.title,
        nodes=summary.nodes,
        host=host_nodes(compilation),
        host_share=summary.host_flop_share,
        layers=layers,
        by_tvm=summary.by_tvm,
        floats=summary.floats,
        memory=memory,
        largest=largest,
        largest_allowed=target.limits.max_buffer_bytes,
        quirks=quirk_lines(target, facts),
        precision=_precision(compilation),
        remarks=remarks_on(target, layers),
        tensors={node_name(node): next(filter(None, node.output), "") for node in imported.folded.graph.node},
        cpu_ms=imported.cpu_ms(),
        litert=litert_lines(imported.folded.graph.node) if target.limits.is_mobile else (),
        on_cpus=on_cpus(layers, target, 4 if imported.unconverted is None else 2),
    )
    problems = _problems(report, compilation, options)
    return replace(report, problems=problems, seconds=time.monotonic() - started)


def _precision(compilation: Compilation) -> tuple[str, ...]:
    imported, spec = compilation.imported, compilation.target.spec
    if imported.unconverted is not None or imported.onnx_model is None:
        return precision_lines(spec, None, ())
    try:
        error, ranges = fp16_error(imported.folded, imported.inputs)
    except ModelError as problem:
        return (*precision_lines(spec, None, ()), f"The error of fp16 is not known: {problem.message}")
    return precision_lines(spec, error, ranges)


def _problems(report: CheckReport, compilation: Compilation, options: CheckOptions) -> tuple[str, ...]:
    """Return the reasons for exit code 1: a tensor that is too large, memory or time above the caller's limits."""
    problems = []
    try:
        check_sizes(compilation.within(None).memory_plan(), compilation.target)
    except ModelError as error:
        problems.append(str(error).replace("\n", " "))
    except DeviceError as error:
        problems.append(error.message)
    if options.max_memory is not None and report.memory is not None and report.memory.total > options.max_memory:
        took, most = (f"{number / _MIB:.2f}" for number in (report.memory.total, options.max_memory))
        problems.append(f"the model takes {took} MiB of the device's memory; max_memory allows {most}")
    if options.max_ms is not None and report.ms is not None and report.ms > options.max_ms:
        problems.append(f"the estimate is {report.ms:.3f} ms; max_ms allows {options.max_ms:g}")
    return tuple(problems)
