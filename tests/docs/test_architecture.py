"""Names in hand-written tables exist: layers and rooms, outcomes, the tests of recipes."""

from __future__ import annotations

import ast
import json
import re

from romou.base.outcome import Outcome
from support.docs.documents import ROOT

_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_rooms_are_the_layers_from_the_top_down() -> None:
    contract = (ROOT / "pyproject.toml").read_text().partition('name = "Eight layers"')[2]
    layers = json.loads(re.findall(r"^layers = (\[.*\])$", contract, re.MULTILINE)[0])
    rows = re.findall(r"^\| ?(?:`(\w+)`)? ?\| ?(?:`(\w+)`)? ?\|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert [layer for layer, _ in rows if layer] == re.findall(r"\w+", " ".join(layers))
    rooms: dict[str, set[str]] = {}
    for layer, room in rows:
        rooms.setdefault(layer or list(rooms)[-1], set()).update({room} - {""})
    for layer, named in rooms.items():
        found = {path.parent.name for path in (ROOT / "romou" / layer).glob("*/__init__.py")}
        # Layers of one room describe it in one row.
        assert found == named or not named, layer
        assert len(found) <= 7, layer


def test_readme_is_short_and_installs_early() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) < 120
    assert next(number for number, line in enumerate(lines) if "pip install" in line) < 40
    assert next(number for number, line in enumerate(lines) if "scripts/demo.sh" in line) < 20


def test_all_outcomes_of_a_trial_are_explained() -> None:
    assert re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/guide/tuning.md").read_text(), re.MULTILINE) == [
        str(outcome) for outcome in Outcome
    ]


def test_every_recipe_names_a_test_that_is_there() -> None:
    recipes = re.split(r"^## ", (ROOT / "docs/contributing/extending.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(recipes) >= 7
    for recipe in recipes:
        named = _TEST.findall(recipe)
        assert named, recipe.splitlines()[0]
        for path, function in named:
            names = {
                node.name
                for node in ast.walk(ast.parse((ROOT / path).read_text()))
                if isinstance(node, ast.FunctionDef)
            }
            assert function in names, f"{path}::{function}"
