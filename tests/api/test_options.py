"""Options of measuring and keeping: limits, a callback, the place of records."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import onnx
import pytest
from click.testing import CliRunner

import romou
from romou.base.errors import UsageError
from romou.base.variants import VARIANTS, VariantName
from romou.cli import main
from romou.compiler.compilation import Compilation, import_model
from romou.compiler.operators.costs.criteria import L1_RULES
from romou.driver import options
from romou.driver.search.records import open_records
from romou.tuner.records import FILE_NAME, RecordStore
from romou.tuner.search.strategies import EXPLORERS
from support.models.small_networks import NetworkBuilder

# Nothing here has to do with kernels.
HOST = "null"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROMOU_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def one_convolution(seed: int = 0) -> onnx.ModelProto:
    g = NetworkBuilder({"image": (1, 4, 9, 9)}, seed=seed)
    return g.model(g.conv("image", 4, 4))


def trials_in(folder: Path) -> int:
    return sum('"is_again":false' in line for line in (folder / FILE_NAME).read_text().splitlines())


def folder_of(model: onnx.ModelProto, target: str = HOST, work_dir: Path | Literal[False] | None = None) -> Path | None:
    named = romou.Target(target)
    compilation = Compilation.of(import_model(model, None), named).with_default_kernels()
    with open_records(work_dir, compilation, named) as (_, folder):
        return folder


def test_the_cache_keeps_records_and_a_second_run_goes_on(cache: Path) -> None:
    seen: list[romou.Trial] = []
    first = romou.tune(one_convolution(), target=HOST, trials=2, callback=seen.append).summary()
    folder = Path(str(first.records))
    assert folder.is_relative_to(cache / "records")
    assert trials_in(folder) == 2
    second = romou.tune(one_convolution(), target=HOST, trials=3, callback=seen.append).summary()
    assert second.records == first.records
    assert [trial.number for trial in seen] == [1, 2, 3]
    assert trials_in(folder) == 3


@pytest.mark.parametrize(("options", "kept"), [({}, "reread"), ({"l1": "paper"}, "paper"), ({"prune": False}, "")])
def test_records_keep_how_bytes_were_counted(tmp_path: Path, options: dict[str, object], kept: str) -> None:
    romou.tune(one_convolution(), target=HOST, trials=1, work_dir=tmp_path, **options)
    with RecordStore(tmp_path) as store:
        assert {record.l1 for record in store} == {kept}


def test_a_wrong_way_to_count_bytes() -> None:
    with pytest.raises(UsageError, match="unknown value of l1 'papr'; known: paper, reread"):
        romou.tune(one_convolution(), target=HOST, l1="papr")
    with pytest.raises(UsageError, match="l1='paper' changes pruning, but prune is False"):
        romou.tune(one_convolution(), target=HOST, l1="paper", prune=False)


def test_kernels_and_target_name_the_folder(cache: Path) -> None:
    folder = folder_of(one_convolution())
    assert folder is not None
    assert folder.is_dir()
    assert folder_of(one_convolution(seed=1)) == folder  # other weights
    g = NetworkBuilder({"image": (1, 4, 9, 9)})
    assert folder_of(g.model(g.conv("image", 4, 8))) != folder
    assert folder_of(one_convolution(), target="opencl -device=adreno640") != folder


def test_false_keeps_nothing(cache: Path) -> None:
    assert folder_of(one_convolution(), work_dir=False) is None
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_costs_the_records_alone(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.write_text("no folder")
    assert folder_of(one_convolution()) is None
    assert "records are not kept" in caplog.text
    assert "ROMOU_CACHE_DIR names another folder" in caplog.text


def test_a_second_run_at_the_same_time_has_the_same_records(cache: Path) -> None:
    folder = folder_of(one_convolution())
    assert folder is not None
    with RecordStore(folder):
        assert folder_of(one_convolution()) == folder


def test_limits_reach_the_measurement_and_a_callback_that_fails_keeps_the_trial(cache: Path) -> None:
    seen: list[romou.Trial] = []

    def callback(trial: romou.Trial) -> None:
        seen.append(trial)
        raise ZeroDivisionError(trial.task)

    with pytest.raises(ZeroDivisionError, match="conv2d_1x4x9x9"):
        romou.tune(
            one_convolution(),
            target=HOST,
            trials=3,
            measure=romou.MeasureOptions(build_timeout_s=0.001),
            callback=callback,
        )
    assert [(trial.outcome, trial.error) for trial in seen] == [
        ("build_error", "building took longer than build_timeout_s = 0.001 s")
    ]
    (path,) = cache.rglob(FILE_NAME)
    assert trials_in(path.parent) == 1


@pytest.mark.parametrize(
    ("measure", "text"),
    [
        ({"run_timout_s": 3}, "unknown MeasureOptions key 'run_timout_s'(?s:.*)Did you mean 'run_timeout_s'"),
        ({"repeat": 0}, "repeat=0: must be a whole number, at least 1"),
        (30.0, "measure=30.0: expected MeasureOptions or a mapping of its fields"),
    ],
)
def test_wrong_limits(measure: object, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        romou.tune(one_convolution(), target=HOST, measure=measure)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--measure", "repaet=3"], "Did you mean 'repeat'?"),
        (["--measure", "repeat=often"], "--measure 'repeat=often': expected NAME=NUMBER"),
        (["--build-timeout", "-1"], "build_timeout_s=-1.0: must be a number, above 0"),
        (["--run-timeout", "0"], "run_timeout_s=0.0: must be a number, above 0"),
        (["--no-records", "--work-dir", "here"], "--no-records keeps nothing, but --work-dir names 'here'"),
    ],
)
def test_wrong_flags(flags: list[str], text: str, tmp_path: Path) -> None:
    onnx.save(one_convolution(), tmp_path / "one.onnx")
    result = CliRunner().invoke(main, ["tune", str(tmp_path / "one.onnx"), *flags])
    assert result.exit_code == 2
    assert text in result.output


def test_the_command_line_says_where_records_are_and_names_outputs(cache: Path, tmp_path: Path) -> None:
    model = one_convolution()
    onnx.save(model, tmp_path / "one.onnx")
    saved = str(tmp_path / "one.romou")
    how = ["--target", HOST, "--trials", "1", "--measure", "repeat=1", "--build-timeout", "60", "--output", saved]
    result = CliRunner().invoke(main, ["tune", str(tmp_path / "one.onnx"), *how])
    assert result.exit_code == 0, result.output
    (path,) = cache.rglob(FILE_NAME)
    assert f"records:{path.parent}(alaterrungoesonfromthem)" in "".join(result.output.split())
    name = model.graph.output[0].name
    shown = CliRunner().invoke(main, ["run", saved])
    assert f"output 0 {name}: float32" in shown.output


def test_type_checkers_know_the_words() -> None:
    """Each table of words has the words of its type, in order."""
    assert get_args(options.PrecisionName) == options.PRECISIONS
    assert get_args(options.L1Rule) == options.L1_CHOICES == tuple(L1_RULES)
    assert get_args(options.ExplorerName) == tuple(EXPLORERS)
    assert get_args(VariantName) == tuple(VARIANTS)
