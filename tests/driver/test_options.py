"""Options are one class a function. Python, type checkers and the command line see the same fields."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from typing import Any

import click
import pytest

import romou
from romou.api.report import ChartsKeywords, ReportKeywords
from romou.base.checked_options import CheckedOptions
from romou.base.errors import ModelError, UsageError
from romou.cli import main
from romou.driver import options
from support.models.small_networks import prime_net

CLASSES: dict[str, type[CheckedOptions]] = {
    "tune": options.TuneOptions,
    "compile": options.CompileOptions,
    "check": options.CheckOptions,
    "bench": options.BenchOptions,
    "compare": options.CompareOptions,
    "write_report": options.ReportOptions,
    "charts": options.ChartsOptions,
    "inspect": options.InspectOptions,
    "memory_plan": options.RecordedOptions,
    "pruned_spaces": options.SpaceOptions,
}
COMMANDS = {"write_report": "report", "charts": "report", "memory_plan": "inspect", "pruned_spaces": "space"}
# Fields that only a caller from Python can give
PYTHON_ONLY = {
    "tune": {"progress", "callback"},
    "compile": set[str](),
    "check": set[str](),
    "bench": {"label"},
    "compare": {"label", "times", "measures"},
    "write_report": set[str](),
    "charts": set[str](),
    "inspect": set[str](),
    "memory_plan": set[str](),
    "pruned_spaces": {"rules"},
}


def fields_of(name: str) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(CLASSES[name])}


def test_type_checkers_see_the_fields_of_a_report_with_their_types() -> None:
    """Keywords of the other functions are derived from the class: `tests/architecture/test_types.py`."""
    for function, keywords in (("write_report", ReportKeywords), ("charts", ChartsKeywords)):
        hints = {key: hint.__forward_arg__ for key, hint in keywords.__annotations__.items()}
        assert hints == {key: field.type for key, field in fields_of(function).items()}


@pytest.mark.parametrize("name", CLASSES)
def test_signature_and_documentation_are_those_of_the_fields(name: str) -> None:
    function = getattr(romou, name)
    parameters = inspect.signature(function).parameters.values()
    keywords = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert keywords == {key: field.default for key, field in fields_of(name).items()}
    assert all(f"\n{key}\n    " in function.__doc__ for key in keywords)


def test_positional_arguments_of_a_function_with_options_are_checked() -> None:
    for call in (lambda: romou.tune(), lambda: romou.compare(current="m")):  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="missing a required argument"):
            call()
    with pytest.raises(TypeError, match=r"options are given by name: romou.tune\(model, target=...\)"):
        romou.tune("m", "opencl")  # type: ignore[call-arg]
    with pytest.raises(ModelError, match="no_such_file"):
        romou.tune(model="no_such_file.onnx")


@pytest.mark.parametrize("name", CLASSES)
def test_options_are_frozen_and_keyword_only(name: str) -> None:
    kind = CLASSES[name]
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().precision = "float16"  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        kind("float16")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", CLASSES)
def test_the_command_line_has_every_option_with_its_default(name: str) -> None:
    command = main.get_command(click.Context(main), COMMANDS.get(name, name))
    assert command is not None
    shown: dict[str | None, Any] = {parameter.name: parameter for parameter in command.params}
    assert fields_of(name).keys() - shown.keys() == PYTHON_ONLY[name]
    context = click.Context(command)
    for key in fields_of(name).keys() & shown.keys():
        # An option that may be repeated has no default.
        is_repeated = shown[key].multiple
        assert is_repeated or shown[key].get_default(context) == fields_of(name)[key].default


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: romou.tune(prime_net(), trails=3), "unknown option of tune 'trails'(?s:.*)Did you mean 'trials'"),
        (lambda: romou.compile(prime_net(), shape={}), "unknown option of compile(?s:.*)Did you mean 'shapes'"),
        (lambda: romou.bench(prime_net(), repeat=9), "unknown option of bench(?s:.*)Did you mean 'repeats'"),
        (lambda: romou.compare("a.json", "b.json", fail=1), "unknown option of compare(?s:.*)Did you mean 'fail_over'"),
        (lambda: romou.inspect(prime_net(), kernels="x"), "unknown option of inspect(?s:.*)Did you mean 'kernel'"),
        (
            lambda: romou.memory_plan(prime_net(), shape={}),
            "unknown option of memory_plan 'shape'(?s:.*)Did you mean 'shapes'",
        ),
        (lambda: romou.pruned_spaces(prime_net(), rule=1), "unknown option of pruned_spaces(?s:.*)mean 'rules'"),
        (lambda: romou.write_report("a", outpt="x"), "unknown option of write_report(?s:.*)Did you mean 'output'"),
        (lambda: romou.tune("bundled:squeezenet1_1"), "Did you mean 'squeezenet1_0'"),
        (lambda: romou.compile("bundled:resnet"), "unknown bundled model 'resnet'(?s:.*)Did you mean 'resnet18'"),
        (lambda: romou.inspect("bundled:vgg"), "unknown bundled model 'vgg'"),
        (lambda: romou.training.gradients("bundled:vgg"), "unknown bundled model 'vgg'"),
    ],
)
def test_an_unknown_name_fails_with_the_nearest(call: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        call()


def test_a_bundled_network_has_a_name_in_python() -> None:
    compiled = romou.compile("bundled:squeezenet1_0", target="null", verify=False)
    assert list(compiled.inputs.values()) == [((1, 3, 224, 224), "float32")]


def test_the_command_line_does_without_tvm_until_a_command_runs() -> None:
    code = "import romou.cli.tune, romou.cli.compare, sys; print({'tvm', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(("target", "usual_ms"), [("cuda -arch=sm_90a", 5.0), ("opencl", 20.0)])
def test_a_kind_of_device_has_its_own_length_of_a_timing(target: str, usual_ms: float) -> None:
    def measured(measure: dict[str, float] | None) -> float:
        return options.TuneOptions(target=target, measure=measure).measure_options().min_repeat_ms

    assert (measured(None), measured({"repeat": 1}), measured({"min_repeat_ms": 7.0})) == (usual_ms, usual_ms, 7.0)
