"""The first screen of a report: each model's figures, its slowest layers, what bounds them, and what to do next."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from romou.runtime.module.summary import Summary
from romou.runtime.module.timed import ratio
from romou.tools.regression.bench_data import Bench, OpenedModel
from romou.tools.report.evidence import Evidence
from romou.tools.report.table import filled, memory_text, mib, number

# Steps of opening an exported model (tvm_patches/app_runtime/model.cc).
_STEPS = {
    "read": "files",
    "programs": "programs, {cached} loaded, {compiled} compiled",
    "weights": "weights to the device",
}
# Layers in the table of the slowest.
_SHOWN = 8
# A layer, or a gap between kernels, that takes a larger share of the model is worth a sentence.
_WORTH = 0.1
# A search ends well if its last fifth gained less than this.
_LITTLE = 0.02
_LAST_FIFTH = 0.8
_FEW_RECORDS = 20
_NO_LIMITS = "What bounds a layer takes facts of the device: a report of `archprobe run` beside the other files."

_UNTIMED = "No model was timed: `romou tune` times one."

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
# The other columns are numbers, set to the right.
TEXTS = ("model", "device", "layer", "kernel", "bound by", "step")


def models_table(evidence: Evidence) -> Table:
    """Return (columns, rows), a row for each model and one for onnxruntime on this machine's CPU, if it was timed."""
    columns = ("model", "by default, ms", "ms", "faster", "noise", "error", "memory, MiB", "trials", "device")
    rows: list[tuple[str, ...]] = []
    for name, summary in evidence.models:
        error = "-" if summary.relative_l2_error is None else f"{summary.relative_l2_error:.1e}"
        memory = "-" if summary.memory is None else mib(summary.memory.total)
        times = (summary.default_text, summary.tuned_text, summary.speedup_text, summary.noise_text)
        trials = str(sum(row.trials for row in summary.rows))
        rows.append((name, *times, error, memory, trials, summary.device or summary.target))
    if evidence.cpu_ms is not None:
        rows.append(("onnxruntime, as given", "", number(evidence.cpu_ms), "", "", "", "", "", "this machine's CPU"))
    return columns, rows


def slowest_table(evidence: Evidence, summary: Summary) -> Table:
    """Return (columns, rows) of the layers that take most of a model's time."""
    columns = ("layer", "ms of all calls", "share", "faster", "bound by", "calls", "kernel")
    timed = [(row, row.tuned_ms * row.calls) for row in summary.rows if row.tuned_ms is not None]
    total = sum(ms for _, ms in timed)
    rows: list[tuple[str, ...]] = [
        (
            evidence.label_of(row),
            number(ms),
            f"{ms / total:.0%}" if total else "-",
            row.speedup_text,
            evidence.limits.get(row.key, "-"),
            str(row.calls),
            row.name if row.nodes else "-",
        )
        for row, ms in sorted(timed, key=lambda pair: -pair[1])[:_SHOWN]
    ]
    return columns, rows


def matched_table(evidence: Evidence) -> Table:
    """Return (columns, rows) of the slowest layers of the compared models, matched by ONNX node."""
    names = [name for name, _ in evidence.compared]
    columns = ("layer", *(f"{name}, ms" for name in names), *([f"{names[1]} over {names[0]}"] * (len(names) == 2)))
    rows = []
    for layer, ms in evidence.matched[:_SHOWN]:
        over = ratio(ms[1] / ms[0] if ms[0] and ms[1] is not None else None)
        rows.append((layer, *map(number, ms), *([over] * (len(names) == 2))))
    return columns, rows


def next_steps(evidence: Evidence) -> list[str]:
    """Return what would make the model faster, the most certain first. Empty if nothing is known of it."""
    return [step for _, summary in evidence.models[:1] for step in _steps(evidence, summary)]


def _steps(evidence: Evidence, summary: Summary) -> Iterator[str]:
    if summary.stand_in:
        yield summary.stand_in
    if evidence.cpu_ms is not None and summary.tuned_ms:
        yield _beside_the_cpu(evidence.cpu_ms, summary, summary.tuned_ms)
    if summary.host:
        yield "Some nodes run on the host, with copies: `romou check` says what to change in the export."
    timed = [(row, row.tuned_ms * row.calls) for row in summary.rows if row.tuned_ms is not None]
    total = sum(ms for _, ms in timed)
    untried = [row for row, ms in timed if not row.trials and ms > _WORTH * total]
    if untried:
        names = ", ".join(map(evidence.label_of, untried))
        yield f"No config was tried of {names}, each more than {_WORTH:.0%} of the time: raise --trials."
    if (gained := _late_gain(evidence)) is not None:
        if gained > _LITTLE:
            yield f"The last fifth of the search made the layers {gained:.0%} faster: more trials may gain more."
        else:
            yield f"The last fifth of the search made the layers {gained:.0%} faster: more trials will gain little."
    if summary.tuned_ms and total and total < (1 - _WORTH) * summary.tuned_ms:
        share = 1 - total / summary.tuned_ms
        yield (
            f"{share:.0%} of the model's time is outside its layers, each timed with warm caches: launches"
            f" ({summary.launching}), cold caches, nodes on the host."
        )
    waiting = ("L2", "reads", "writes", "memory")
    bound = [row for row, ms in timed if ms > _WORTH * total and _has(evidence.limits.get(row.key, ""), waiting)]
    if summary.precision == "float32" and bound:
        yield "The slowest layers wait for data: --precision float16 halves their bytes. The error is checked."


def _beside_the_cpu(cpu_ms: float, summary: Summary, tuned_ms: float) -> str:
    """Return a sentence that compares the model's time with onnxruntime's on this machine's CPU."""
    noise = (summary.noise or 0.0) * tuned_ms
    low, high = summary.tuned_range_ms or (tuned_ms - noise, tuned_ms + noise)
    if summary.is_noisy and low <= cpu_ms <= high:
        return (
            f"onnxruntime takes {number(cpu_ms)} ms on this machine's CPU. Between {number(low)} and {number(high)} ms"
            " for this model is too noisy to compare: time it on a quieter machine."
        )
    if low <= cpu_ms <= high:
        return f"onnxruntime takes as long on this machine's CPU, within the noise of {summary.noise_text}."
    if cpu_ms < low:
        return (
            f"onnxruntime takes {number(cpu_ms)} ms on this machine's CPU, less than the {summary.tuned_text} ms here:"
            " this device is the slower place for this model."
        )
    return f"onnxruntime on this machine's CPU takes {ratio(cpu_ms / tuned_ms)} as long."


def _has(text: str, words: Sequence[str]) -> bool:
    return any(word in text for word in words)


def _late_gain(evidence: Evidence) -> float | None:
    """Return the share of time that the last fifth of the trials saved. None of a short search."""
    order = [record for record in evidence.records if not record.is_again]
    if len(order) < _FEW_RECORDS:
        return None
    best: dict[str, float] = {}
    sums = []
    for record in order:
        if record.time_s is not None:
            best[record.task_key] = min(best.get(record.task_key, record.time_s), record.time_s)
        whole = best.keys() == evidence.best_s.keys()
        sums.append(sum(evidence.calls.get(key, 1) * s for key, s in best.items()) if whole else None)
    before, after = sums[int(_LAST_FIFTH * len(sums))], sums[-1]
    return 1 - after / before if before and after else None


def app_table(bench: Bench, opened: OpenedModel) -> Table:
    """Return (columns, rows) of what an exported model took on a device, from its opening to its outputs."""
    runs = [ms for times_ms in bench.model_times_ms for ms in times_ms]
    made = {name: opened.programs.get(name, 0) for name in ("cached", "compiled")}
    steps: list[tuple[str, Sequence[float]]] = [
        ("open the model", [] if bench.open_ms is None else [bench.open_ms]),
        *((f"open: {_STEPS.get(step, step).format(**made)}", [ms]) for step, ms in opened.ms.items()),
        ("first run", [] if bench.first_run_ms is None else [bench.first_run_ms]),
        ("inputs to the device", bench.inputs_ms),
        ("a run", runs),
        ("outputs from the device", bench.outputs_ms),
    ]
    return ("step", "ms", "shortest", "longest", "times"), [
        (name, *(number(of(times_ms)) for of in (statistics.median, min, max)), str(len(times_ms)))
        for name, times_ms in steps
        if times_ms
    ]


def tables(evidence: Evidence) -> Iterator[tuple[str, Table, list[str]]]:
    """Yield (caption, table, notes below it) of the first screen.

    Nothing if the sources have no tuned model and no exported one that was timed in an app.
    """
    if (bench := evidence.bench) is not None and (opened := bench.about) is not None:
        notes = [f"Left: {reason}." for reason in opened.left]
        yield f"{bench.model} on {(bench.device or {}).get('name', 'a device')}", app_table(bench, opened), notes
    if not evidence.models:
        return
    memory = [(name, memory_text(summary.memory)) for name, summary in evidence.models if summary.memory is not None]
    if evidence.summary is None:
        notes = [f"{name}: {text}" for name, text in memory]
        is_timed = any(ms is not None for _, times_ms in evidence.matched for ms in times_ms)
        yield "Models", filled(*models_table(evidence)), notes + [_UNTIMED] * (not is_timed)
        if is_timed:
            yield "Slowest layers, matched by ONNX node", filled(*matched_table(evidence)), []
        return
    yield "Models", filled(*models_table(evidence)), []
    notes = [_NO_LIMITS] if evidence.spaces and not evidence.limits else []
    yield "Slowest layers", filled(*slowest_table(evidence, evidence.summary)), notes + [text for _, text in memory]
