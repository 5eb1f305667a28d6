"""References of the documents exist: files, headings, commands, options and names of the Python interface."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import click
import pytest

import make_docs
from romou.devices.hardware import known_shipped_devices, load_device
from support.docs.documents import DOCUMENTS, ROOT, CodeBlock, blocks, code_spans, commands, prose

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"(?:romou|archprobe|schedules|tvm_patches|tests|scripts|benchmarks|docs)/[\w./-]*\w/?")
_SCRIPTS = ("scripts/", "benchmarks/", "tests/stress/")
# The return types of public functions, if examples use the result.
_RETURNS = {"tune": "TunedModel", "compile": "TunedModel", "load": "TunedModel"}


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# Of the pages in docs/, test_site.py checks links and anchors.
@pytest.mark.parametrize("path", [p for p in DOCUMENTS if not p.is_relative_to(ROOT / "docs")], ids=_id)
def test_links_lead_somewhere(path: Path) -> None:
    for link in _LINK.findall(prose(path)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        goal = (path.parent / name).resolve() if name else path
        assert goal.exists(), link
        assert not anchor or anchor in _anchors(goal), link


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if p.name != "CHANGELOG.md"], ids=_id)
def test_files_that_are_named_exist(path: Path) -> None:
    for span in code_spans(path):
        for found in _PATH.findall(span) if _PATH.match(span) else ():
            assert (ROOT / found).exists(), span


# All that a user reads: documents, messages and docstrings, and the sample of a workflow.
_READ = [
    *DOCUMENTS,
    ROOT / "benchmarks/notebook/README.md",
    *(ROOT / "docs/guide/ci").iterdir(),
    *(file for folder in ("romou", "archprobe", "scripts", "benchmarks") for file in (ROOT / folder).rglob("*.py")),
]


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        (r"\bromou\[([a-z,]+)\]|\.whl\[([a-z,]+)\]|pip install '?\.\[([a-z,]+)\]", "extra"),
        (r"\b((?:scripts|benchmarks|tests/stress)/\w+\.(?:py|sh))\b", "script"),
        (r"\b(\d+) (?:other |more )?mobile GPUs", "count of mobile GPUs"),
    ],
    ids=["extras", "scripts", "mobile GPUs"],
)
def test_what_a_user_reads_names_what_there_is(pattern: str, kind: str) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    table = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", table, re.MULTILINE))
    mobile = sum(load_device(name).is_phone_gpu for name in known_shipped_devices())
    found = [
        (path.relative_to(ROOT), name)
        for path in _READ
        for groups in re.findall(pattern, path.read_text())
        for name in "".join(groups).split(",")
    ]
    assert found
    is_there = {"extra": extras.__contains__, "script": lambda name: (ROOT / name).exists()}
    wrong = [each for each in found if not is_there.get(kind, lambda name: int(name) == mobile)(each[1])]
    assert not wrong, f"no such {kind} (extras: {sorted(extras)}; mobile GPUs: {mobile}): {wrong}"


def test_hints_can_be_followed() -> None:
    """Romou is on no index: pip finds its extras where it is installed already, and nothing else. A bare bracket is a
    pattern for zsh. Of docs/ a wheel has what `romou docs` prints.
    """
    texts = set()
    for path in (path for folder in ("romou", "archprobe", "tvm_patches") for path in (ROOT / folder).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        strings = (node.value for node in nodes if isinstance(node, ast.Constant) and node not in docstrings)
        texts |= {(path.relative_to(ROOT), text) for text in strings if isinstance(text, str)}
    installed = [each for each in texts if re.search(r"pip install [^`\n]*\bromou\b", each[1])]
    assert len(installed) > 8
    assert [each for each in installed if not re.search(r"pip install 'romou\[\w+\]'", each[1])] == []
    assert [each for each in texts if re.search(r"docs/[\w/]+\.md", each[1])] == []


def _check_command(words: list[str]) -> None:
    """Fail unless click would accept the words. Files need not exist."""
    command: click.Command = make_docs.programs()[words[0]]
    context, rest = click.Context(command, info_name=words[0]), words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        assert found is not None, f"{words}: no command {rest[0]!r}"
        command, context, rest = found, click.Context(found, parent=context, info_name=rest[0]), rest[1:]
    values, _, order = command.make_parser(context).parse_args(list(rest))
    for parameter in order:
        if (
            isinstance(parameter.type, click.Choice | click.types.FloatRange | click.types.IntParamType)
            and parameter.name
        ):
            for value in values[parameter.name] if parameter.multiple else [values[parameter.name]]:  # type: ignore[attr-defined]
                parameter.type.convert(value, parameter, context)


def _check_script(words: list[str]) -> None:
    """Fail unless the script is there and its text holds the options."""
    text = (ROOT / words[0]).read_text()
    for word in words[1:]:
        assert not word.startswith("--") or word.partition("=")[0] in text, f"{words[0]} has no {word}"


def test_commands_of_generated_pages_exist() -> None:
    for block in blocks("sh", is_generated=True):
        test_commands_exist(block)


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_commands_exist(block: CodeBlock) -> None:
    for words in commands(block.text):
        if words[0] in make_docs.programs():
            _check_command(words)
        elif words[0].startswith(_SCRIPTS):
            _check_script(words)
        elif words[0] == "python" and words[1].startswith(_SCRIPTS):
            _check_script(words[1:])


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if p.name != "CHANGELOG.md"], ids=_id)
def test_commands_in_prose_exist(path: Path) -> None:
    names = {name for program, group in make_docs.programs().items() for name, _, _ in make_docs.walk(group, program)}
    for span in code_spans(path):
        words = span.split()
        if words[0] not in make_docs.programs() or len(words) < 2 or not words[1].isalpha():
            continue
        assert any(
            f"{name} ".startswith(f"{' '.join(words[: len(name.split())])} ") for name in names
        ) or f"{words[0]} {words[1]}" in {" ".join(name.split()[:2]) for name in names}, span
        for option in re.findall(r"--[a-z][\w-]*", span):
            holders = [
                c
                for name, c, _ in (x for p, g in make_docs.programs().items() for x in make_docs.walk(g, p))
                if span.startswith(name)
            ]
            assert any(option in (*p.opts, *p.secondary_opts) for c in holders for p in c.params), span


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_uses_what_exists(block: CodeBlock) -> None:
    tree = ast.parse(block.text)
    made: dict[str, type] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in ("romou", "archprobe"):
            for alias in node.names:
                assert hasattr(importlib.import_module(node.module), alias.name), f"{node.module}.{alias.name}"
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            function = _chain(node.value.func)
            if function[:1] == ["romou"] and function[-1] in _RETURNS:
                made[node.targets[0].id] = _find(["romou", _RETURNS[function[-1]]])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (chain := _chain(node)):
            if chain[0] == "romou":
                _find(chain)
            elif chain[0] in made:
                own = inspect.getsource(made[chain[0]])
                assert (
                    hasattr(made[chain[0]], chain[1]) or f"self.{chain[1]} = " in own or f"self.{chain[1]}: " in own
                ), ".".join(chain)
        if isinstance(node, ast.Call) and _chain(node.func)[:1] == ["romou"]:
            known = inspect.signature(_find(_chain(node.func))).parameters
            for keyword in node.keywords:
                assert keyword.arg is None or keyword.arg in known, (
                    f"{'.'.join(_chain(node.func))} has no {keyword.arg}="
                )


def _chain(node: ast.expr) -> list[str]:
    """Return ["a", "b", "c"] for a.b.c, and an empty list for anything else."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := _chain(node.value)):
        return [*before, node.attr]
    return []


def _find(chain: list[str]):  # type: ignore[no-untyped-def]
    found = importlib.import_module(chain[0])
    for i, name in enumerate(chain[1:], start=1):
        try:
            found = getattr(found, name)
        except AttributeError:
            found = importlib.import_module(".".join(chain[: i + 1]))
    return found


def test_there_is_something_to_check() -> None:
    """The checks above take their cases from the documents: these must not run dry."""
    lines = [words for block in blocks("sh") for words in commands(block.text)]
    assert sum(words[0] in ("romou", "archprobe") for words in lines) > 20
    assert len(blocks("python")) > 5


@pytest.mark.parametrize(
    "words",
    [["romou", "tuna"], ["romou", "tune", "m.onnx", "--trails", "3"], ["romou", "compare", "a", "b", "--only", "time"]],
)
def test_wrong_commands_are_found(words: list[str]) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        _check_command(words)
