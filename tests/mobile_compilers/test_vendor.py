"""The vendors' compilers, which nobody ships: reports in malioc's form, and stand-ins for the programs.

The reports in data/malioc were written by hand in the form of malioc 7.2's and 8.4's. No vendor's compiler ran here.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

from romou.api.bench import bench_of
from romou.base.errors import BuildError, UsageError
from romou.cli import main
from romou.devices.mobile_compilers import (
    Compiler,
    VendorStatistics,
    compile_by_vendor,
    mesa_version,
    vendor,
    vendor_compiler,
)
from romou.devices.mobile_compilers.vendor import read_report
from romou.devices.targets import Target
from romou.driver.options import BenchOptions
from romou.tools.regression import Bench
from romou.tools.regression.operators import COMPILED
from support.docs.smallest_runs import printed_by
from support.models.small_networks import short_net

REPORTS = Path(__file__).parent / "data/malioc"
KERNEL = ("first", "__kernel void first(__global float *a) { a[0] = 1; }")
# Writes how it was called beside itself, and prints the report that is beside it.
STAND_IN = """#!/bin/sh
folder=$(dirname "$0")
echo "$@" >> "$folder/calls"
cat "$folder/report.json"
for last; do :; done
cp "$last" "$folder/source.cl"
"""


def saved(name: str) -> str:
    return (REPORTS / f"{name}.json").read_text(encoding="utf-8")


def write_program(path: Path, text: str = STAND_IN, report: str = "") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (path.parent / "report.json").write_text(report)
    return path


@pytest.fixture
def malioc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for malioc in PATH, before all others."""
    program = write_program(tmp_path / "bin/malioc", report=saved("valhall"))
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return program


def test_a_report_of_valhall() -> None:
    assert read_report(saved("valhall"), "malioc") == VendorStatistics(
        compiler="Mali Offline Compiler 7.2.0",
        registers=32,
        uniform_registers=18,
        occupancy=None,
        is_spilling=False,
        spill_bytes=0,
        cycles_by_unit={"arith_fma": 1.40625, "arith_cvt": 0.078125, "arith_sfu": 0, "load_store": 4, "texture": 0.25},
        longest_by_unit={"arith_fma": 1.40625, "arith_cvt": 0.078125, "arith_sfu": 0, "load_store": 4, "texture": 0.25},
        bound_by=("load_store",),
    )


def test_a_report_of_bifrost_with_spills_and_without_a_longest_path() -> None:
    said = read_report(saved("bifrost_spills"), "malioc")
    assert (said.registers, said.occupancy, said.is_spilling, said.spill_bytes) == (64, 0.5, True, None)
    assert said.cycles_by_unit["load_store"] == 12
    assert said.longest_by_unit == {}


def test_a_refused_kernel_gives_the_compilers_words() -> None:
    with pytest.raises(BuildError, match="malioc refuses the kernel: 0.cl:3:7: error: unknown type name 'flot'"):
        read_report(saved("error"), "malioc")


def variant(report: dict[str, Any]) -> dict[str, Any]:
    return report["shaders"][0]["variants"][0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("producer"), "producer is missing"),
        (lambda r: r.update(shaders=[]), "it has 0 shaders; expected 1"),
        (lambda r: r.update(shaders=r["shaders"] * 2), "it has 2 shaders; expected 1"),
        (lambda r: r["shaders"][0].update(variants=[]), "it has 0 variants; expected 1"),
        (lambda r: variant(r).pop("performance"), r"variants\[0\].performance is missing"),
        (lambda r: variant(r)["properties"].pop(0), "work_registers_used is missing"),
        (lambda r: variant(r)["properties"][0].update(value="32"), "work_registers_used is '32'; expected"),
        (lambda r: variant(r)["properties"][0].update(value=-1), "work_registers_used is -1; expected at least 0"),
        (lambda r: variant(r)["performance"]["pipelines"].pop(), "5 cycle counts for 4 pipelines"),
        (
            lambda r: variant(r)["performance"]["total_cycles"].update(cycle_count=[-1.0] * 5),
            r"total_cycles.cycle_count\[0\] is -1.0; expected at least 0",
        ),
        (lambda r: variant(r)["properties"].append([]), r"properties\[5\] is \[\]; expected an object"),
    ],
)
def test_another_form_is_refused_and_named(change: Callable[[dict[str, Any]], Any], message: str) -> None:
    report = json.loads(saved("valhall"))
    change(report)
    with pytest.raises(
        BuildError, match=f"the output of malioc is no report of a kernel in malioc's JSON: .*{message}"
    ):
        read_report(json.dumps(report), "malioc")


def test_every_truncated_and_damaged_report_is_one_error_or_statistics() -> None:
    text = saved("valhall")
    for end in range(0, len(text.rstrip()), 7):
        with pytest.raises(BuildError, match="not JSON"):
            read_report(text[:end], "malioc")
    rng = np.random.default_rng(20261129)
    for _ in range(300):
        damaged = list(text)
        for at in rng.integers(0, len(text), 3):
            damaged[at] = chr(rng.integers(1, 0x250))
        try:
            assert isinstance(read_report("".join(damaged), "malioc"), VendorStatistics)
        except BuildError as error:
            assert "malioc" in str(error)


@pytest.mark.parametrize(("gpu", "core"), [("g76", "Mali-G76"), ("g610", "Mali-G610"), ("g925", "Mali-G925")])
def test_how_malioc_is_called(malioc: Path, gpu: str, core: str) -> None:
    """The form is Arm's: https://learn.arm.com/learning-paths/smartphones-and-mobile/ams/malioc."""
    assert vendor_compiler(gpu) == malioc
    (said,) = compile_by_vendor([KERNEL], gpu)
    assert isinstance(said, VendorStatistics)
    words = (malioc.parent / "calls").read_text().split()
    assert words[:-1] == ["--opencl", "1.2", "--core", core, "--name", "first", "--format", "json"]
    assert words[-1].endswith(".cl")
    assert (malioc.parent / "source.cl").read_text() == KERNEL[1]


def test_adrenos_program_is_called_as_malioc_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write_program(tmp_path / "own/adreno.sh", report=saved("bifrost_spills"))
    assert vendor_compiler("a740") is None
    monkeypatch.setenv("ROMOU_ADRENO_COMPILER", str(program))
    assert vendor_compiler("a740") == program
    (said,) = compile_by_vendor([KERNEL], "a740")
    assert isinstance(said, VendorStatistics)
    assert said.registers == 64
    calls = (program.parent / "calls").read_text()
    assert calls.startswith("--opencl 1.2 --core Adreno 740 --name first --format json /")
    # It compiles for no Mali.
    monkeypatch.setenv("PATH", str(tmp_path))
    assert vendor_compiler("g76") is None


def test_a_path_that_is_no_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").write_text("")
    for path in (tmp_path / "none", tmp_path, tmp_path / "notes.txt"):
        monkeypatch.setenv("ROMOU_ADRENO_COMPILER", str(path))
        with pytest.raises(UsageError, match=f"ROMOU_ADRENO_COMPILER='{path}' is no executable file\nchmod"):
            vendor_compiler("a740")
        result = CliRunner().invoke(main, ["inspect", "bundled:resnet18", "--device", "adreno740", "--gpu"])
        assert result.exit_code == 2
        assert f"ROMOU_ADRENO_COMPILER='{path}' is no executable file" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/sh\necho 'no licence' >&2\nexit 3\n", "malioc ended with code 3: no licence"),
        (
            "#!/bin/sh\necho 'Usage: malioc'\n",
            "the output of malioc is no report of a kernel in malioc's JSON: not JSON",
        ),
        (
            "#!/bin/sh\nprintf '\\377\\376'\n",
            "the output of malioc is no report of a kernel in malioc's JSON: not JSON",
        ),
        ("#!/nowhere/sh\n", "malioc does not start: No such file or directory"),
        ("#!/bin/sh\nexec sleep 60\n", "malioc took longer than 1 s"),
    ],
)
def test_a_program_that_fails(malioc: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.setattr(vendor, "_TIMEOUT_S", 1.0)
    write_program(malioc, text)
    (said,) = compile_by_vendor([KERNEL], "g76")
    assert isinstance(said, BuildError)
    assert message in str(said)


def test_an_error_report_has_an_exit_code(malioc: Path) -> None:
    write_program(malioc, f"{STAND_IN}exit 1\n", saved("error"))
    (said,) = compile_by_vendor([KERNEL], "g76")
    assert isinstance(said, BuildError)
    assert "malioc refuses the kernel: 0.cl:3:7: error" in str(said)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(short_net(), path)
    return path


def inspect(model: Path, *words: str) -> Result:
    return CliRunner().invoke(
        main, ["inspect", str(model), "--device", "mali_g78", "--kernel", "max_pool2d", "--no-source", *words]
    )


def test_inspect_shows_malioc_without_mesa(
    malioc: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROMOU_MOBILE_COMPILERS", str(tmp_path / "none"))
    for gpu in ("g78", "g57"):
        shown = inspect(model, "--gpu", gpu)
        assert shown.exit_code == 0, shown.output
        words = " ".join(shown.stdout.split())
        assert f"malioc, {gpu}" in words
        assert "Mesa" not in words
        assert "uniform │ │ 18 │" in words
        assert "spills (private memory accesses) │ │ none │" in words
        assert "cycles, loops once │ │ 4 (load_store) │" in words
        assert (
            f"malioc, {gpu}: cycles by unit, loops once: arith_fma 1.40625, arith_cvt 0.078125, arith_sfu 0," in words
        )
        assert "Mali Offline Compiler 7.2.0: the vendor's compiler. Nothing was executed." in words
    (kernel,) = json.loads(inspect(model, "--gpu", "g78", "--json").stdout)["kernels"]
    assert kernel["mesa"] == {}
    assert kernel["vendor"]["g78"]["registers"] == 32
    write_program(malioc, report=saved("error"))
    refused = inspect(model, "--gpu", "g78")
    assert refused.exit_code == 0
    assert "malioc, g78: malioc refuses the kernel: 0.cl:3:7: error" in refused.stdout


def test_a_mali_that_mesa_does_not_compile_for_needs_malioc(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = inspect(model, "--gpu", "g78")
    assert refused.exit_code == 2
    assert "unknown mobile GPU 'g78'" in refused.stderr


def test_the_vendors_column_stands_beside_mesas(
    compilers: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = write_program(tmp_path / "own/adreno.sh", report=saved("bifrost_spills"))
    monkeypatch.setenv("ROMOU_ADRENO_COMPILER", str(program))
    shown = inspect(model, "--gpu", "a740")
    assert shown.exit_code == 0, shown.output
    words = " ".join(shown.stdout.split())
    assert "Mesa, a740 ┃ adreno.sh, a740 ┃" in words
    assert "spills (private memory accesses) │ │ 0 │ yes │" in words
    assert "Mesa 25" in words


@pytest.fixture
def no_mesa(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROMOU_MOBILE_COMPILERS", str(tmp_path / "none"))


@pytest.mark.usefixtures("no_mesa")
@pytest.mark.parametrize(("device", "gpu"), [("mali_g78", "g78"), ("adreno740", "a740")])
def test_counts_of_a_vendor_are_a_baseline_without_mesa(
    malioc: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, gpu: str
) -> None:
    monkeypatch.setenv("ROMOU_ADRENO_COMPILER", str(malioc))
    counts = tmp_path / "counts.json"
    run = lambda *words: CliRunner().invoke(main, [*map(str, words)])
    benched = run("bench", model, "--device", device, "--gpu", gpu, "--no-times", "--save", counts)
    assert benched.exit_code == 0, benched.output
    before = Bench.load(counts)
    assert before.compiler == Compiler(gpu=gpu, vendor="Mali Offline Compiler 7.2.0")
    (pool,) = (o for o in before.operators if o.name.startswith("pool"))
    counted = {name: value for name, value in pool.measures.items() if name in COMPILED}
    assert counted == {"vendor_refusals": 0, "vendor_spills": 0, "vendor_registers": 32, "vendor_cycles": 4}

    def compared() -> Result:
        return run("compare", counts, model, "--only", "measures", "--fail-over", "0")

    equal = compared()
    assert equal.exit_code == 0, equal.output
    assert f"Counts: by Mali Offline Compiler 7.2.0 for {gpu}." in equal.stdout
    spilling = json.loads(saved("valhall"))
    variant(spilling)["properties"] = [
        {**each, "value": {"work_registers_used": 40, "stack_spill_bytes": 8}.get(each["name"], each["value"])}
        for each in variant(spilling)["properties"]
    ]
    (malioc.parent / "report.json").write_text(json.dumps(spilling))
    worse = compared()
    assert worse.exit_code == 1
    assert "vendor_spills WORSE 0 -> 1" in " ".join(worse.stdout.split())
    assert "vendor_registers WORSE 32 -> 40" in " ".join(worse.stdout.split())
    spilling["producer"]["version"] = [8, 4, 0]
    (malioc.parent / "report.json").write_text(json.dumps(spilling))
    other = compared()
    assert other.exit_code == 2
    assert "are by Mali Offline Compiler 7.2.0" in other.stderr
    assert f"the current ones by Mali Offline Compiler 8.4.0 for {gpu}" in other.stderr


def test_a_kernel_that_the_vendor_refuses_has_no_other_counts(malioc: Path, model: Path, no_mesa: None) -> None:
    compiler = Compiler.installed("g78")
    write_program(malioc, report=saved("error"))
    target = Target("opencl -device=mali_g78")
    untimed = bench_of(str(model), target, BenchOptions(target=target, times=False), None, compiler=compiler)
    for counted in untimed.operators:
        assert {n: v for n, v in counted.measures.items() if n in COMPILED} == {"vendor_refusals": 1}
    # It answers for no GPU then.
    with pytest.raises(BuildError, match="malioc refuses the kernel"):
        Compiler.installed("g78")


def test_which_compilers_count(compilers: Path, malioc: Path) -> None:
    both = Compiler.installed("g76")
    assert both == Compiler(gpu="g76", mesa=mesa_version(), vendor="Mali Offline Compiler 7.2.0")
    assert str(both) == f"Mesa {mesa_version()} and Mali Offline Compiler 7.2.0 for g76"
    assert Compiler.installed("g925") == Compiler(gpu="g925", vendor="Mali Offline Compiler 7.2.0")
    # Of a baseline, only its own compilers' counts are compared.
    only_mesa = Compiler(gpu="g76", mesa=mesa_version())
    assert both.among(only_mesa) == only_mesa
    assert only_mesa.among(both) == only_mesa != both
    write_program(malioc, "#!/bin/sh\nexit 3\n")
    assert Compiler.installed("g76") == only_mesa


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("bench_mobile_layers", "--only 1x1 --candidates 1 --precision float32"),
        ("bench_mobile_defaults", "--only 160x7x7 --every 4 --precision float32"),
        ("bench_mobile_static", "--only 512x14x14 --candidates 0"),
        ("bench_quantized", "--product 'int4, block 32, 1 row'"),
        ("bench_listing4", "--side 8"),
        ("bench_output_buffers", "--tiles 1"),
    ],
)
def test_benches_print_the_vendors_counts(
    compilers: Path, malioc: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    text = " ".join(printed_by(script, f"--gpu g76 {words}", malioc.parent, monkeypatch).split())
    assert "vendor: r32 4 cycles" in text
    assert "Mali-G76" in (malioc.parent / "calls").read_text()
