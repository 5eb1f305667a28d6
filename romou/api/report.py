"""romou.write_report and romou.charts: figures of a tuned model, on one HTML page or as charts of Altair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from romou.base.arguments import path_of
from romou.base.checked_options import documents_options
from romou.base.compat import check_versions
from romou.base.errors import ModelError, UsageError
from romou.base.files import read_file
from romou.base.foreign import parsed, refused
from romou.compiler.compilation import Compilation
from romou.compiler.frontend.imported import ImportedModel
from romou.compiler.frontend.precision import AS_GIVEN
from romou.compiler.operators.costs.criteria import L1_RULES
from romou.devices.backends import DEFAULT_KIND
from romou.devices.hardware import load_device, load_spec
from romou.devices.hardware.archprobe_report import curves_of, is_report
from romou.devices.targets import Target
from romou.driver.options import ChartsOptions, ReportOptions
from romou.driver.search.records import recorded_configs
from romou.runtime.module import Summary
from romou.runtime.module.manifest import AGAIN, META, read_manifest
from romou.tools.inspection.breakdown import operations_step_by_step
from romou.tools.inspection.check_report import limit_of
from romou.tools.regression import Bench
from romou.tools.regression.bench_data import KIND
from romou.tools.report.evidence import Evidence
from romou.tools.report.page import altair_charts, check_library, write_page
from romou.tuner.pruning.tasks import pruned_space
from romou.tuner.records import RecordStore
from romou.tuner.records.store import FILE_NAME

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from typing_extensions import Unpack

    from romou.base.space import Config
    from romou.compiler.frontend.shape_sets import Shapes
    from romou.compiler.task import TunableTask
    from romou.driver.options import IoPrecisionName, PrecisionName

# The slowest kernels, whose passes are shown one by one
_BROKEN_DOWN = 12


class ChartsKeywords(TypedDict, total=False):
    """Fields of `ChartsOptions`. `takes_options` has none for a function of any number of sources."""

    model: onnx.ModelProto | str | Path | None
    target: Target | str | Mapping[str, object] | None
    device: int | str | None
    shapes: Shapes | Sequence[Shapes] | None
    dims: Mapping[str, int | Sequence[int] | Sequence[range]] | None
    constants: Mapping[str, object] | None
    precision: PrecisionName | None
    io_precision: IoPrecisionName | None
    calibration: Sequence[Mapping[str, np.ndarray]] | None


class ReportKeywords(ChartsKeywords, total=False):
    """Fields of `ReportOptions`."""

    output: str | Path


@documents_options(ReportOptions)
def write_report(*sources: str | Path | Sequence[str | Path], **keywords: Unpack[ReportKeywords]) -> Path:
    """Write a page with figures of a tuning run, as one HTML file that needs no network, and return its path.

    It begins with a table of the model, its slowest layers with what bounds them, and what to do next. With a model it
    also times onnxruntime on this machine's CPU. Figures follow: time per layer, the roofline, memory, and for the
    tuner's author the search, pruning, knobs, registers, passes and the device. A figure that lacks its data says
    which. Several saved models are shown side by side.

    Parameters
    ----------
    sources
        Files and folders of one model, in any order: a folder of records (`work_dir` of `tune`), a saved model, a file
        of `romou bench`, a report of `archprobe run`. Or several saved models. A list of them counts as its entries.

    Raises
    ------
    UsageError
        A source is none of these, a wrong argument, the records are of none of the model's kernels, or the page cannot
        be written.
    ModelError
        The model, or a saved one, is missing or broken.
    RecordError
        The records are unreadable.
    """
    options = ReportOptions.from_dict(keywords, "write_report")
    check_library()
    return write_page(_evidence(sources, options), path_of("output", options.output))


@documents_options(ChartsOptions)
def charts(*sources: str | Path | Sequence[str | Path], **keywords: Unpack[ChartsKeywords]) -> dict[str, Any]:
    """Return the figures of a report that have data as charts of Altair, by name: "layers", "roofline", "convergence".

    Their data are plain rows, `chart.data.values`.

    Parameters
    ----------
    sources
        As for `write_report`.

    Raises
    ------
    UsageError
        As for `write_report`, or Altair is not installed.
    ModelError, RecordError
        As for `write_report`.
    """
    return altair_charts(_evidence(sources, ChartsOptions.from_dict(keywords, "charts")))


def _evidence(sources: Sequence[str | Path | Sequence[str | Path]], options: ChartsOptions) -> Evidence:
    """Return the evidence in the sources, and what the options add to it."""
    each = [source for given in sources for source in (given if isinstance(given, list | tuple) else [given])]
    if not each:
        raise UsageError(
            "there is nothing to report on; give a folder of records, a .romou folder, a bench's file or an ArchProbe"
            " report"
        )
    evidence, target, folder = _evidence_in([path_of("source", source) for source in each])
    if options.target is not None or options.device is not None:
        kind = DEFAULT_KIND if target is None else target.kind
        target = replace(options, target=options.target or kind).parsed_target()
    evidence = replace(evidence, target=target, spec=evidence.spec or _spec_of(target))
    if options.model is not None and evidence.compared:
        raise UsageError(
            "a report on several saved models takes no model", hint="Leave model out, or draw a page each."
        )
    if options.model is not None:
        if target is None:
            raise UsageError("the sources do not say the target; name it, for example target='opencl -device=host'")
        precision = options.parsed_precision(evidence.summary.precision if evidence.summary else AS_GIVEN)
        imported = options.imported(options.model, precision)
        evidence = _with_model(evidence, imported, target, folder)
    return evidence


def _evidence_in(sources: Sequence[Path]) -> tuple[Evidence, Target | None, Path | None]:
    """Return the evidence in all sources, the target that they name, and the folder of records.

    If no source is a folder of records, use the folder that a saved model was made from, if it still exists.
    """
    evidence, target, folder = Evidence(title=", ".join(source.stem for source in sources)), None, None
    saved = [source for source in sources if (source / META).is_file()]
    _check_one_model(sources, saved)
    for source in sources:
        if _is_records(source):
            folder = source
        elif (source / META).is_file():
            manifest = read_manifest(source)
            with refused(ModelError, f"{source}: {META} cannot be used", hint=AGAIN):
                summary = Summary.from_dict(manifest["summary"])
            if len(saved) > 1:
                name = str(source) if sum(source.stem == other.stem for other in saved) > 1 else source.stem
                evidence = replace(evidence, compared=[*evidence.compared, (name, summary)])
                continue
            evidence, target = replace(evidence, summary=summary), Target.from_json(manifest["target"])
            kept = Path(summary.records) if summary.records is not None else None
            folder = folder or (kept if kept is not None and _is_records(kept) else None)
        else:
            evidence = _with_document(evidence, source)
    if folder is not None:
        with RecordStore(folder) as store:
            evidence = replace(evidence, records=tuple(store))
    texts = [record.target for record in evidence.records if record.target]
    texts += [evidence.bench.target] if evidence.bench else []
    return evidence, target or (_target_of(texts[-1]) if texts else None), folder


def _check_one_model(sources: Sequence[Path], saved: Sequence[Path]) -> None:
    """Raise UsageError if a search would be shown that is of no one model."""
    records = [source for source in sources if _is_records(source)]
    if len(records) > 1 or (records and len(saved) > 1):
        kinds = f"{len(records)} folders of records and {len(saved)} saved models"
        raise UsageError(
            f"{' and '.join(map(str, (*records, *saved)))} are {kinds}; a search is of one model",
            hint="Draw a page for each search. Saved models without records are shown side by side.",
        )


def _target_of(text: str) -> Target:
    return Target.from_json(text) if text.startswith("{") else Target(text)


def _spec_of(target: Target | None) -> Any:
    return None if target is None or target.device_name is None else load_device(target.device_name)


def _is_records(path: Path) -> bool:
    return (path / FILE_NAME).is_file()


def _with_document(evidence: Evidence, path: Path) -> Evidence:
    """Return evidence with a bench's file or an ArchProbe report."""
    text = f"{path}: no folder of records, saved model, bench or ArchProbe report"
    hint = "`romou tune --work-dir` and --output, `romou bench --save` and `archprobe run` write them."
    with refused(UsageError, text, hint=hint, path=str(path)):
        data = parsed(read_file(path))
        if isinstance(data, dict) and data.get("kind") == KIND:
            return replace(evidence, bench=Bench.load(path))
        return replace(evidence, spec=load_spec(path), curves=tuple(curves_of(data)) if is_report(data) else ())


def _with_model(evidence: Evidence, imported: ImportedModel, target: Target, folder: Path | None) -> Evidence:
    """Return evidence with the model's kernels: their spaces, the effect of each pass, and the memory of a run."""
    check_versions()
    compilation = Compilation.of(imported, target).with_default_kernels()
    if evidence.by_task and not any(task.key in evidence.by_task for task in compilation.tasks):
        text = (
            f"none of the {len(evidence.by_task)} recorded kernels is one of the model's {len(compilation.tasks)} for"
            f" {target}, {imported.precision.kind}"
        )
        raise UsageError(
            text,
            hint=(
                "Name the model, target, shapes and precision of the tuning (--model, --target, --shape, --precision)."
            ),
        )
    seconds, configs = recorded_configs(folder, compilation, target)
    rules = L1_RULES.get(evidence.l1)
    compilation = compilation.joined_where_faster(seconds).with_configs(configs)
    evidence = replace(
        evidence,
        spaces=tuple((task, pruned_space(task, target, rules)) for task in compilation.tasks),
        memory=compilation.memory_plan(),
    )
    worth = [task for task in compilation.tasks if task.template.sums_products]
    slowest = sorted(worth, key=lambda task: -task.calls * evidence.best_s.get(task.key, 0.0))[:_BROKEN_DOWN]
    spec = evidence.spec or target.spec
    limits = {task.key: limit_of(task, _config_of(task, configs, target), target, spec) for task in compilation.tasks}
    operations = {}
    for task in slowest:
        config = _config_of(task, configs, target)
        operations[task.key] = operations_step_by_step(task.schedule(config, target)["main"], target)
    named = {key: limit for key, limit in limits.items() if limit}
    return replace(evidence, operations=operations, limits=named, cpu_ms=imported.cpu_ms())


def _config_of(task: TunableTask, configs: Mapping[str, Config | None], target: Target) -> Config:
    return configs.get(task.key) or task.default_config(target)
