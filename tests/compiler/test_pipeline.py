"""`romou/compiler/pipeline.py` lists every pass, and nothing else applies one."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import tvm

import romou
from romou.compiler import pipeline
from romou.compiler.stages import Context, OnnxContext, Stage, part

ROOT = Path(romou.__file__).parent
STAGES: tuple[Stage, ...] = (
    *pipeline.ONNX,
    *pipeline.GRAPH,
    *pipeline.MODULE,
    *pipeline.KERNEL,
    *pipeline.HOST,
    *pipeline.DEVICE,
)
# Libraries for passes. Their functions also map a module to a module.
TOOLS = {"rebuild_main", "with_main", "with_names", "with_types_of_functions"}
# Passes that are steps of a listed one.
STEPS = {"hide_quotients": "flatten_buffers", "show_quotients": "flatten_buffers"}


def functions(folder: str) -> Iterator[tuple[Path, ast.FunctionDef]]:
    for path in sorted((ROOT / "compiler" / folder).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield path, node


def is_pass(function: ast.FunctionDef) -> bool:
    if any("_pass(" in ast.unparse(decorator) for decorator in function.decorator_list):
        return True
    first = function.args.args[0] if function.args.args else None
    types = [None if node is None else ast.unparse(node) for node in (first and first.annotation, function.returns)]
    return first is not None and first.arg == "mod" and types == ["tvm.IRModule", "tvm.IRModule"]


def passes(folder: str) -> set[str]:
    found = {function.name for _, function in functions(folder) if is_pass(function)} - TOOLS
    assert found, f"{folder} has passes"
    return found


FOLDERS = ("graph", "graph/memory", "passes")
PACKAGES = tuple(f"romou.compiler.{folder.replace('/', '.')}" for folder in FOLDERS)
ALL_PASSES = {name for folder in FOLDERS for name in passes(folder)}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_pass_is_listed(folder: str) -> None:
    assert {STEPS.get(name, name) for name in passes(folder)} <= {stage.name for stage in STAGES}


def test_no_pass_is_applied_elsewhere() -> None:
    """Only pipeline.py imports passes, and no pass calls another one of its file."""
    uses = set()
    for path in sorted(set(ROOT.rglob("*.py")) - set(ROOT.rglob("__init__.py"))):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.ImportFrom)
                and str(node.module).startswith(PACKAGES)
                and path.name != "__init__.py"
            ):
                uses |= {(path.name, alias.name) for alias in node.names if alias.name in ALL_PASSES}
        own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)} & ALL_PASSES
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in own:
                uses.add((path.name, node.func.id))
    assert {path for path, _ in uses} == {"pipeline.py"}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.file_name)
def test_a_stage_has_a_reason_and_reads_the_fields_that_its_pass_takes(stage: Stage) -> None:
    assert stage.reason
    if isinstance(stage.run, tvm.transform.Pass):
        assert not stage.reads
        return
    # A rule takes a node and its graph in place of the model.
    parameters = list(inspect.signature(stage.run).parameters)[2 if hasattr(stage.run, "__wrapped__") else 1 :]
    context = OnnxContext if stage in pipeline.ONNX else Context
    assert len(parameters) == len(stage.reads)
    assert all(hasattr(context, name) or name in context.__dataclass_fields__ for name in stage.reads)


def test_stages_are_numbered_in_order() -> None:
    model = (*pipeline.ONNX, *pipeline.GRAPH, *pipeline.MODULE)
    for level in (model, (*pipeline.KERNEL, *pipeline.HOST, *pipeline.DEVICE)):
        assert [stage.number for stage in level] == list(range(1, len(level) + 1))


def test_a_part_of_a_pipeline_is_named_by_its_first_and_last_stage() -> None:
    first, last = part(pipeline.GRAPH, last="place_images"), part(pipeline.GRAPH, "join_chains")
    assert (*first, *last) == pipeline.GRAPH
    with pytest.raises(romou.UsageError, match=r"unknown stage 'join_chain'(.|\n)*Did you mean 'join_chains'"):
        part(pipeline.GRAPH, "join_chain")
