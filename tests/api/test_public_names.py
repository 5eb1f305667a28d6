"""The public names: imported on demand, and each documented with its parameters and its errors."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import romou
from support.models.small_networks import prime_net

# What raises for its caller, and the error's name.
_RAISERS = {"unknown_name": "UsageError", "no_device_error": "DeviceError"}


def public() -> dict[str, Any]:
    """Return every public function and class, and the public methods and properties of each class, by name."""
    found: dict[str, Any] = {}
    for name in romou.__all__:
        held = found[name] = getattr(romou, name)
        methods = vars(held).items() if inspect.isclass(held) else ()
        found |= {
            f"{name}.{n}": m
            for n, m in methods
            if not n.startswith("_") and (callable(m) or isinstance(m, (property, classmethod, staticmethod)))
        }
    return {name: held for name, held in found.items() if not name.startswith("Outcome.")}


def function_of(held: Any) -> Callable[..., Any]:
    if inspect.isclass(held):
        return held.__init__  # type: ignore[misc,no-any-return]
    return held.fget if isinstance(held, property) else getattr(held, "__func__", held)  # type: ignore[no-any-return]


def undocumented(held: Any) -> list[str]:
    """Return the parameters that the docstring neither lists nor names between backticks."""
    if inspect.isclass(held) and "__init__" not in vars(held):
        return []  # its base's
    texts = [inspect.getdoc(each) or "" for each in (inspect.getmro(held) if inspect.isclass(held) else (held,))]
    signature = inspect.signature(held if inspect.isclass(held) else function_of(held))
    kinds = (inspect.Parameter.VAR_POSITIONAL,)
    names = [p.name for p in signature.parameters.values() if p.name not in ("self", "cls") and p.kind not in kinds]
    named = r"^(\w+, )*{0}(, \w+)*( {{2,}}|$)|`{0}`|\b{0}(, \w+)*: "
    return [name for name in names if not any(re.search(named.format(name), text, re.MULTILINE) for text in texts)]


def unsaid_errors(held: Any) -> set[str]:
    """Return the errors that the function itself raises and its docstring does not name."""
    try:
        source = textwrap.dedent(inspect.getsource(function_of(held)))
    except (OSError, TypeError):
        return set()
    calls = [
        node.exc.func
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    ]
    names = {
        call.id if isinstance(call, ast.Name) else call.attr
        for call in calls
        if isinstance(call, (ast.Name, ast.Attribute))
    }
    text = inspect.getdoc(held) or ""
    return {name for name in (_RAISERS.get(name, name) for name in names) if name not in text}


def test_the_names_are_loaded_on_demand() -> None:
    code = (
        "import sys, romou; print(sorted(m for m in sys.modules if m.partition('.')[0] in ('tvm', 'numpy', 'click')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_all_errors_are_public() -> None:
    from romou.base import errors

    held = {
        name for name, found in vars(errors).items() if inspect.isclass(found) and issubclass(found, romou.RomouError)
    }
    assert held <= set(romou.__all__)


@pytest.mark.parametrize("name", public())
def test_every_public_name_is_documented(name: str) -> None:
    held = public()[name]
    assert inspect.getdoc(held)
    assert not (inspect.isclass(held) and held.__doc__ is None)
    assert undocumented(held) == []
    assert unsaid_errors(held) == set()


@pytest.mark.parametrize("name", ["tune", "compile", "inspect", "bench", "compare", "pruned_spaces", "load"])
def test_every_function_lists_its_errors(name: str) -> None:
    assert "\nRaises\n------\n" in (inspect.getdoc(getattr(romou, name)) or "")


def test_the_checks_can_fail() -> None:
    def lame(given: int, other: int) -> None:
        """Take `other`."""
        raise romou.UsageError("no")

    assert undocumented(lame) == ["given"]
    assert unsaid_errors(lame) == {"UsageError"}


def test_the_namespace_holds_public_names_only() -> None:
    assert set(romou.__all__) <= set(dir(romou))
    assert not {"Any", "TYPE_CHECKING", "annotations", "importlib", "base"} & set(dir(romou))
    returned = {"tune": "TunedModel", "bench": "Bench", "compare": "Comparison", "check": "CheckReport"}
    returned |= {"memory_plan": "MemoryPlan", "doctor": "Diagnosis", "quantize": "Quantized"}
    for function, kind in returned.items():
        assert inspect.signature(getattr(romou, function)).return_annotation == kind
        assert kind in romou.__all__


def test_results_show_themselves_in_a_line() -> None:
    model = prime_net()
    compiled = romou.compile(model, verify=False)
    results = {
        "CheckReport": romou.check(model, device="adreno740"),
        "MemoryPlan": romou.memory_plan(model, device="adreno740"),
        "InspectedKernel": romou.inspect(model, device="adreno740")[0],
        "TunableTask": romou.pruned_spaces(model, device="adreno740")[0][0],
        "Profile": compiled.profile(repeat=1),
        "LayerRow": compiled.summary().rows[0],
        "Quantized": romou.Quantized(model=model, errors={"w": 0.085}),
        "OperatorModel": romou.operators.conv2d(in_channels=8, size=16, out_channels=8, kernel=3),
        "Bench": romou.bench(model, times=False),
    }
    for name, held in results.items():
        assert re.fullmatch(rf"{name}\(.{{10,200}}\)", repr(held)), repr(held)[:300]
    assert repr(results["Quantized"]).endswith("weights: 1, relative L2 errors up to 8.5e-02)")
