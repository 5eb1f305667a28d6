"""Counts by a mobile compiler as a baseline: slowdowns are found, and equal builds raise no alarm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import romou
from romou.api.bench import bench_of
from romou.base.errors import BuildError, UsageError
from romou.base.space import Config
from romou.cli import main
from romou.devices.mobile_compilers import Compiler, KernelStatistics, MobileCompilersMissingError, mesa_version
from romou.devices.targets import Target
from romou.driver.options import BenchOptions
from romou.tools.regression import Bench, Comparison, operators
from support.data.benches import MEASURES, bench, operator
from support.models.small_networks import short_net
from support.suite.exhaustive import few

Answers = list[list[KernelStatistics] | BuildError]
TARGET = "opencl -device=adreno740"
MESA_25 = Compiler(gpu="a740", mesa="25.0.7-2+deb13u1")
COUNTS = dict.fromkeys(operators.COMPILED, 40)
POOL = "max_pool2d"


@pytest.fixture
def change(
    compile_once: Callable[[Sequence[str], str], Answers], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[str], str]], None]:
    """Return a function that sets how OpenCL C is changed before it is compiled. Without it, it stays."""

    def use(changed: Callable[[str], str] = str) -> None:
        def compile_changed(sources: Sequence[str], gpu: str, *, timeout_s: float) -> Answers:
            assert timeout_s > 0
            return compile_once([changed(source) for source in sources], gpu)

        monkeypatch.setattr(operators, "compile_all", compile_changed)

    use()
    return use


def counted() -> Bench:
    return romou.bench(short_net(), target=TARGET, times=False, gpu="own")


@pytest.fixture
def before(change: Callable[[Callable[[str], str]], None]) -> Bench:
    change(str)
    return _baseline()


_baseline = cache(counted)


def worse(found: Comparison) -> dict[str, set[str]]:
    return {row.name.partition("_")[0]: {rise.measure for rise in row.rises} for row in found.regressions}


READ = "    sums_0 = max(v__4, sums_0);\n"
EXTRA_LOAD = READ + (
    "    sums_0 = max(as_float4(READ_IMAGEF(lv6_ptr, image_sampler, ((int4)(at_3, at_2, at_4, 0)))), sums_0);\n"
)
PRIVATE_ARRAY = READ + (
    "  float4 kept[64];\n  for (int i = 0; i < 64; ++i) kept[(i * at) & 63] = v_ * i;\n"
    "  sums_0 = max(kept[(local_x * at_3) & 63], sums_0);\n"
)


@pytest.mark.parametrize(
    ("planted", "measures"),
    [
        (EXTRA_LOAD, {"compiled_instructions", "compiled_executed"}),
        (PRIVATE_ARRAY, {"compiled_spills", "compiled_private_bytes", "compiled_instructions"}),
        (READ.replace("max", "maximum"), {"compiled_refusals"}),
    ],
    ids=["load", "spill", "refused"],
)
def test_a_planted_slowdown_is_found_and_in_no_other_kernel(
    before: Bench, change: Callable[[Callable[[str], str]], None], planted: str, measures: set[str]
) -> None:
    pool = next(o for o in before.operators if o.name.startswith("pool"))
    assert pool.measures["compiled_refusals"] == pool.measures["compiled_spills"] == 0
    edited = []

    def plant(source: str) -> str:
        edited.append(READ in source and POOL in source)
        return source.replace(READ, planted) if edited[-1] else source

    change(plant)
    after = counted()
    assert edited.count(True) == 1
    found = romou.compare(before, after, times=False, fail_over=0)
    assert set(worse(found)) == {"pool"}
    assert measures <= worse(found)["pool"]
    assert romou.compare(after, before, times=False, fail_over=0).regressions == []


def test_a_model_is_compiled_by_the_compiler_of_the_baseline(before: Bench) -> None:
    assert before.compiler == Compiler.installed("a740")
    found = romou.compare(before, short_net(), times=False, fail_over=0)
    assert found.compiler == str(before.compiler)
    assert [row for row in found.rows if row.rises or row.notes] == []


def test_a_worse_config_executes_more_instructions(before: Bench) -> None:
    """Counts of a whole launch are compared between schedules, too. Weights of 3x3 are in an image by default."""
    (conv,) = (o for o in before.operators if "3x3" in o.name)
    assert conv.config["weight"] == "image"
    options = BenchOptions(target=TARGET, times=False)
    configs = {conv.key: Config({**conv.config, "weight": "buffer"})}
    after = bench_of(short_net(), Target(TARGET), options, None, configs, before.compiler)
    found = romou.compare(before, after, times=False)
    assert worse(found) == {"conv2d": {"compiled_executed"}}
    (row,) = found.regressions
    assert row.notes == (
        "another config (weight): only compiled_refusals, compiled_spills, compiled_executed compared",
    )
    assert romou.compare(after, before, times=False).regressions == []


@pytest.mark.parametrize("seeds", few([range(2), *(range(start, start + 25) for start in range(0, 100, 25))], 0))
def test_equal_builds_raise_no_alarm(seeds: range, compilers: Path, tmp_path: Path) -> None:
    """Each build is a process with another seed of hashes, which the order of sets depends on."""
    code = (
        "import sys, romou; from support.models.small_networks import short_net;"
        f" romou.bench(short_net(), target={TARGET!r}, times=False, gpu='own').save(sys.argv[1])"
    )
    benches = []
    for seed in seeds:
        path = tmp_path / f"{seed}.json"
        env = {
            **os.environ,
            "PYTHONHASHSEED": str(seed),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "ROMOU_MOBILE_COMPILERS": str(compilers),
        }
        done = subprocess.run([sys.executable, "-c", code, path], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        benches.append(Bench.load(path))
    first, *others = benches
    assert all("compiled_executed" in o.measures for o in first.operators)
    for other in others:
        assert [o.measures for o in other.operators] == [o.measures for o in first.operators]
        found = romou.compare(first, other, times=False, fail_over=0)
        assert found.compiler is not None
        assert [(row.name, row.notes, row.rises) for row in found.rows if row.notes or row.rises] == []


def with_counts(compiler: Compiler | None = MESA_25, **given: Any) -> Bench:
    return replace(bench(operator("conv", measures=MEASURES | COUNTS | given)), compiler=compiler)


@pytest.mark.parametrize("count", operators.COMPILED)
def test_every_count_can_fail(count: str) -> None:
    found = romou.compare(with_counts(), with_counts(**{count: 41}), times=False, fail_over=0)
    assert worse(found) == {"conv": {count}}
    assert romou.compare(with_counts(), with_counts(**{count: 39}), times=False, fail_over=0).regressions == []
    gone = with_counts()
    del gone.operators[0].measures[count]  # type: ignore[attr-defined]
    (row,) = romou.compare(with_counts(), gone, times=False).rows
    assert row.notes == (f"{count}: not compared, the current kernels have none",)


@pytest.mark.parametrize(
    "other", [replace(MESA_25, mesa="26.1.6-1~bpo13+1"), replace(MESA_25, gpu="a630"), None], ids=str
)
def test_counts_of_two_compilers_are_not_compared(other: Compiler | None) -> None:
    current = with_counts(other)
    with pytest.raises(UsageError, match="counts of two compilers are not compared") as refused:
        romou.compare(with_counts(), current, times=False)
    assert f"the baseline's are by {MESA_25}, the current ones by {other or 'none'}" in str(refused.value)
    assert "Write both with one compiler, by `romou bench --gpu`" in str(refused.value.hint)
    assert romou.compare(with_counts(), current, measures=False).compiler is None
    # A baseline without counts says that it has none.
    (row,) = romou.compare(bench(operator("conv")), with_counts(), times=False).rows
    assert row.notes[0] == "compiled_refusals: not compared, the baseline lacks it or was counted otherwise"


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing compiler, or another one than the baseline's, is named before the model is compiled."""
    folder, baseline = tmp_path / "mesa", tmp_path / "counts.json"
    monkeypatch.setenv("ROMOU_MOBILE_COMPILERS", str(folder))
    with_counts().save(baseline)
    invoke = lambda *words: CliRunner().invoke(main, [*map(str, words)])
    compared = ["compare", baseline, "bundled:resnet18", "--only", "measures"]
    benched = ["bench", "bundled:resnet18", "--no-times", "--save", tmp_path / "b.json", "--device"]
    for words in (compared, [*benched, "adreno740", "--gpu"], [*benched, "adreno740", "--gpu", "a740"]):
        missing = invoke(*words)
        assert missing.exit_code == 3, missing.output
        assert f"Mesa's mobile compilers are not in {folder}\nhint: Run romou setup" in missing.stderr
    folder.mkdir()
    (folder / "ready.json").write_text(json.dumps({"mesa": "26.1"}), encoding="utf-8")
    assert mesa_version() == "26.1"
    other = invoke(*compared)
    assert other.exit_code == 2
    assert f"the baseline's are by {MESA_25}, the current ones by Mesa 26.1 for a740" in other.stderr
    for device, gpu, text in (
        ("adreno740", "a74", "unknown mobile GPU 'a74'"),
        ("adreno840", "own", "Mesa has no compiler for adreno840"),
    ):
        refused = invoke(*benched, device, "--gpu", gpu)
        assert refused.exit_code == 2
        assert text in refused.stderr
    refused = invoke(*benched[:-1], "--target", "cuda -device=nvidia_h200", "--gpu", "a630")
    assert "--gpu asks compilers of OpenCL C" in refused.stderr
    with_counts(replace(MESA_25, gpu="a74")).save(baseline)
    assert "unknown mobile GPU 'a74'" in invoke(*compared).stderr
    with_counts(replace(MESA_25, gpu="a74")).save(baseline)
    equal = invoke("compare", baseline, baseline, "--only", "measures")
    assert equal.exit_code == 0, equal.output
    assert "Counts: by Mesa 25.0.7-2+deb13u1 for a74." in equal.stdout


def test_missing_compilers_are_no_regression() -> None:
    assert MobileCompilersMissingError("").exit_code == 3
