"""Each example of the documents runs, here or in another test, on a small model. What does not run has a reason.

test_links_and_examples.py checks the options of every line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import make_docs
import romou
from support.docs.documents import ROOT, CodeBlock, blocks, commands
from support.docs.smallest_runs import MESA_RUNS, RUNS
from support.models.small_networks import NetworkBuilder

# Page, first lines of the example -> what is made smaller.
SMALLER: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("README.md", "import numpy"): (("trials=200", "trials=0"),),
    ("docs/reference/python.md", "bound = "): (),
    ("docs/guide/language-models.md", "import romou\n\nquantized"): (("bundled:bert_2layer", "model.onnx"),),
    ("docs/guide/regression-runs.md", "import romou"): (
        ("romou.bench(", "romou.bench(times=False, model="),
        ('"5%"', '"5%", times=False'),
    ),
    ("docs/guide/shapes.md", "import numpy"): (("shapes=shapes,", "shapes=shapes, trials=0,"),),
    ("docs/guide/training.md", "layer = "): (
        ("channels=96, size=27, out_channels=256, kernel=5", "channels=4, size=5, out_channels=8, kernel=5"),
        ("batch=128", "batch=2"),
        ('"cuda", trials=60', '"null", trials=0'),
    ),
    ("docs/evidence/variants.md", "layer = "): (
        ("size=28, out_channels=96", "size=4, out_channels=8"),
        ("trials=100", "trials=0"),
    ),
}
# Page -> the test that runs its other examples.
ELSEWHERE = {
    "docs/contributing/extending.md": "tests/docs/test_recipes.py::test_a_pass",
    "docs/guide/getting-started.md": "tests/api/test_session.py::test_code_for_onnxruntime_runs_with_another_import",
    "docs/guide/language-models.md": "tests/api/test_decoder.py::test_the_bundled_decoder",
    "docs/guide/own-kernels.md": "tests/docs/test_own_kernels.py::test_a_number_is_added_to_an_image",
    "docs/guide/training.md": "tests/training/test_gradients.py::test_the_pages_example_can_be_pasted",
    "docs/guide/tuning.md": "tests/docs/test_tuning_example.py::test_it_ends_when_the_model_is_fast_enough",
    "docs/contributing/inside.md": "tests/docs/test_tutorial.py::test_the_code_prints_the_text_below_it",
}
# Page -> why its example is not run.
NOT_RUN = {"docs/guide/pytorch-to-pixel.md": "PyTorch, which Romou does without, exports the model"}
# Command of Romou or ArchProbe -> a test that runs it.
COMMANDS = {
    "archprobe analyse": "tests/archprobe/test_confirm.py::test_curves_of_microsofts_tool_become_a_report",
    "archprobe compare": "tests/archprobe/test_cli.py::test_compare_names_what_differs_by_more_than_the_intervals",
    "archprobe devices": "tests/archprobe/test_order.py::test_a_device_has_one_number",
    "archprobe plot": "tests/archprobe/test_cli.py::test_plot_draws_every_curve_and_one_page",
    "archprobe run": "tests/archprobe/test_cli.py::test_a_run_of_one_probe_from_the_shell",
    "archprobe show": "tests/archprobe/test_cli.py::test_show",
    "romou bench": "tests/module/test_shapes.py::test_each_shape_has_a_bench",
    "romou check": "tests/inspection/test_check.py::test_the_command_prints_json_and_a_page_and_has_exit_codes",
    "romou compare": "tests/regression/test_comparison.py::test_command_and_its_files",
    "romou compile": "tests/targets/test_device_names.py::test_commands_name_their_device_first_unless_they_are_quiet",
    "romou devices": "tests/cli/test_cli.py::test_devices_lists_attached_and_known",
    "romou docs": "tests/docs/test_site.py::test_a_page_is_printed_where_there_is_no_checkout",
    "romou doctor": "tests/cli/test_cli.py::test_doctor_finds_this_machine_well",
    "romou export": "tests/phone/test_export.py::test_a_saved_model_is_exported_for_any_host",
    "romou generate": "tests/api/test_decoder.py::test_the_command",
    "romou inspect": "tests/inspection/test_inspect_command.py::test_printed",
    "romou phone build": "tests/phone/test_build_script.py::test_the_command_runs_the_script",
    "romou phone push": "tests/phone/test_phone_command.py::test_push_start_use_status_stop",
    "romou phone record": "tests/driver/test_phone_recording.py::test_a_server_is_recorded_and_the_recording_continued",
    "romou phone start": "tests/phone/test_phone_command.py::test_push_start_use_status_stop",
    "romou phone status": "tests/phone/test_phone_command.py::test_push_start_use_status_stop",
    "romou phone stop": "tests/phone/test_phone_command.py::test_push_start_use_status_stop",
    "romou phone warm": "tests/phone/test_phone_command.py::test_warm_brings_the_phones_programs_back",
    "romou records": "tests/records/test_autotvm.py::test_a_log_becomes_recorded_spaces",
    "romou records export": "tests/records/test_t4.py::test_commands",
    "romou records import": "tests/records/test_t4.py::test_commands",
    "romou report": "tests/report/test_page.py::test_the_command_takes_a_bench",
    "romou run": "tests/module/test_profile.py::test_the_command_measures_writes_a_trace_and_json",
    "romou serve": "tests/rpc/test_ssh_tunnel.py::test_tuning_through_the_tunnel_of_the_docs",
    "romou setup mobile-compilers": "tests/mobile_compilers/test_mobile_compilers.py::test_the_command_runs_the_script",
    "romou space": "tests/pruning/test_space_command.py::test_tables_name_tasks_and_criteria",
    "romou tune": "tests/module/test_shapes.py::test_the_commands_of_the_page",
    "romou version": "tests/packaging/test_bare_python.py::test_doctor_tune_and_run",
}
# First words of other lines -> the test that runs them, or why none does.
OTHERS = {
    "./generate": "tests/phone/test_exported_decoders.py::test_tokens_are_onnxruntimes",
    "./classify": "tests/phone/test_c_api.py::test_the_sample_classifies_a_picture",
    "cc": "tests/phone/test_c_api.py::test_the_sample_classifies_a_picture",
    "aarch64-linux-gnu-gcc": "tests/phone/test_c_api.py::test_the_sample_on_arm64",
    "openssl": "tests/rpc/test_ssh_tunnel.py::test_tuning_through_the_tunnel_of_the_docs",
    "ssh": "tests/rpc/test_ssh_tunnel.py::test_tuning_through_the_tunnel_of_the_docs",
    "python -m tvm.exec.rpc_tracker": "tests/rpc/test_tune.py::test_the_hint_for_a_tracker_starts_one",
    "python out/run_model.py": "tests/phone/test_export.py::test_the_python_sample",
    "python scripts/make_docs.py": "tests/docs/test_generated_docs.py::test_check_fails_on_what_would_be_written",
    "scripts/demo.sh": "it installs an environment; tests/packaging/test_bare_python.py runs the same steps",
    "scripts/test.sh": "CI runs it",
    "python -m mkdocs": "tests/docs/test_site.py::test_it_is_built_with_the_pages_that_are_stored_nowhere",
    "python -m mypy": "scripts/test.sh runs it",
    "python -m ruff": "scripts/test.sh runs it",
    "python -m pytest": "these are the tests",
    "python -m venv": "tests/packaging/test_bare_python.py::test_doctor_tune_and_run",
    ".venv/bin/pip": "tests/packaging/test_editable.py::test_a_checkout_runs_in_place",
    "pip": "tests/packaging/test_bare_python.py::test_doctor_tune_and_run",
    "dask": "tests/measure/test_dask_builder.py::test_tuned_as_here",
    "adb": "there is no phone; tests/support has a stand-in for what Romou itself calls",
    "convert": "a program of ImageMagick",
    "export": "a word of the shell",
    "(umask": "a word of the shell",
    "scp": "tests/rpc/test_ssh_tunnel.py copies the file",
    "~/.romou_key)": "the end of a line's redirection",
    "phone.json": "the end of a line's redirection",
}


def texts(page: str, start: str = "") -> list[str]:
    """Return the Python examples of a page that begin so."""
    both = [*blocks("python"), *blocks("python", is_generated=True)]
    return [b.text for b in both if b.path == ROOT / page and b.text.startswith(start)]


def pasted(page: str, start: str, monkeypatch: pytest.MonkeyPatch, folder: Path, **names: Any) -> dict[str, Any]:
    """Run an example in a folder with model.onnx, and return its names."""
    g = NetworkBuilder({"input": (2, 32)})
    onnx.save(g.model(g.add("MatMul", "input", g.weight(32, 8))), folder / "model.onnx")
    monkeypatch.chdir(folder)
    (text,) = texts(page, start)
    for old, new in SMALLER[page, start]:
        assert old in text
        text = text.replace(old, new)
    space = {"romou": romou, **names}
    exec(text, space)
    return space


def test_the_first_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = pasted("README.md", "import numpy", monkeypatch, tmp_path)
    assert float(capsys.readouterr().out.split()[2]) < 1e-5
    x = np.random.default_rng(0).standard_normal((2, 32)).astype("float32")
    np.testing.assert_array_equal(names["again"].run({"input": x})[0], names["tuned"].run({"input": x})[0])


def test_inputs_that_are_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g = NetworkBuilder({"input": (1, 32)})
    proto = g.model(g.add("Relu", "input"))
    proto.graph.node[-1].output[0] = proto.graph.output[0].name = "logits"
    pixels = np.eye(32, dtype="float32")[7:8]
    model = romou.compile(proto, target="opencl -device=host", verify=False)
    names = pasted("docs/reference/python.md", "bound = ", monkeypatch, tmp_path, model=model, pixels=pixels)
    assert names["label"] == 7


def test_a_quantized_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = pasted("docs/guide/language-models.md", "import romou\n\nquantized", monkeypatch, tmp_path)
    assert 0 < names["quantized"].errors[names["worst"]] < 0.2
    assert names["model"].summary().checked_on


def test_a_regression_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = pasted("docs/guide/regression-runs.md", "import romou", monkeypatch, tmp_path)
    assert (tmp_path / "baseline.json").is_file()
    assert names["after"].rows


def test_a_set_of_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 tokens are padded to 128: padding has a mask of 0, and adds nothing."""
    g = NetworkBuilder({"ids": (), "mask": ()})
    for value in g.inputs:
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.INT64, ["batch", "tokens"]))
    vectors = np.random.default_rng(1).standard_normal((50, 8)).astype("float32")
    mask = g.add("Unsqueeze", g.add("Cast", "mask", to=onnx.TensorProto.FLOAT), g.constant(np.array([2])))
    masked = g.add("Mul", g.add("Gather", g.constant(vectors), "ids"), mask)
    onnx.save(g.model(g.add("ReduceSum", masked, g.constant(np.array([1])), keepdims=0)), tmp_path / "encoder.onnx")
    outputs = pasted("docs/guide/shapes.md", "import numpy", monkeypatch, tmp_path)["outputs"]
    np.testing.assert_allclose(outputs[0], 100 * vectors[1:2], rtol=1e-4)
    assert (tmp_path / "encoder.romou").is_dir()


@pytest.mark.parametrize(
    ("page", "shape"),
    [("docs/guide/training.md", (8, 4, 5, 5)), ("docs/evidence/variants.md", (1, 8, 4, 4))],
    ids=["filter", "k1conv"],
)
def test_an_operator_by_itself(
    page: str, shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = pasted(page, "layer = ", monkeypatch, tmp_path)["tuned"]
    inputs = {name: np.ones(sizes, dtype) for name, (sizes, dtype) in tuned.inputs.items()}
    assert tuned.run(inputs)[0].shape == shape


def test_each_example_is_run() -> None:
    """An example that is added needs a test, which this file names."""
    for block in [*blocks("python"), *blocks("python", is_generated=True)]:
        page = str(block.path.relative_to(ROOT))
        assert page in {**ELSEWHERE, **NOT_RUN} or any(
            page == known and block.text.startswith(start) for known, start in SMALLER
        ), block
    for page, name in ELSEWHERE.items():
        file, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text("utf-8"), page
        assert texts(page), page


def test_each_command_is_run() -> None:
    """A line that is added needs a test, or a reason in this file."""
    for block in [*blocks("sh"), *blocks("sh", is_generated=True)]:
        for words in commands(block.text):
            _check_is_run(words, block)
    for test in [*COMMANDS.values(), *(other for other in OTHERS.values() if "::" in other)]:
        file, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text("utf-8"), test
    for command, test in COMMANDS.items():
        assert command.split()[-1] in (ROOT / test.partition("::")[0]).read_text("utf-8"), test


def _check_is_run(words: list[str], block: CodeBlock) -> None:
    """Fail unless a test runs the command or script of a line, or it has a reason."""
    name = words[0] if words[0] != "python" else " ".join(words[: 3 if words[1] == "-m" else 2])
    script = Path(words[1]) if name.startswith(("python benchmarks/", "python tests/stress/")) else None
    if words[0] in make_docs.programs():
        assert any(" ".join(words[:length]) in COMMANDS for length in (2, 3)), (block, words)
    elif script is not None:
        # tests/benchmarks/test_smallest_runs.py and test_stress_scripts_start.py
        assert script.stem in {**RUNS, **MESA_RUNS} or "stress" in script.parts, (block, words)
    else:
        assert name in OTHERS, (block, words)
