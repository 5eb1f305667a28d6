"""Writes the figures of documents (scripts/figures.py): `python scripts/make_docs.py`. Has the pages of docs/reference.

These are made from the code when the site is built (scripts/docs_site.py), and stored nowhere.
tests/docs/test_generated_docs.py fails while a figure that is printed soon is wrong.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from figures import with_measured, with_printed

ROOT = Path(__file__).resolve().parent.parent
# A line of a docstring with a field and its description, in two columns or after a colon.
_FIELD = re.compile(r"(\w[\w, ]*?) {2,}(\S.*)|([a-z]\w*(?:, [a-z]\w*)*): (\S.*)")


def programs() -> dict[str, click.Group]:
    """Return the click groups of the programs that Romou installs, by name."""
    from archprobe.cli import app
    from romou.cli import main

    return {"romou": main, "archprobe": app}


def walk(group: click.Group, path: str) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every command below `group` that does something, with its full name: ("romou phone push", ...)."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path} {name}", command, click.Context(command, info_name=f"{path} {name}")
        if isinstance(command, click.Group):
            yield from walk(command, f"{path} {name}")


def cli() -> str:
    """Return the page of all commands of `romou` and `archprobe` with their arguments and options."""
    parts = ["# Command line\n\nEvery command has `--help`.\n"]
    found = {program: list(walk(group, program)) for program, group in programs().items()}
    for program, commands in found.items():
        rows = [
            (f"[`{name}`](#{name.replace(' ', '-')})", command.get_short_help_str(limit=200))
            for name, command, _ in commands
        ]
        options = [
            _options(command, context) for _, command, context in commands if not isinstance(command, click.Group)
        ]
        common = {row: None for row in options[0] if all(row in others for others in options)}
        parts.append(f"## {program}\n\n{_table(('command', 'what it does'), rows)}")
        if common:
            parts.append(f"All of them take:\n\n{_table(('option', 'meaning'), common)}")
        parts += [_command(name, command, context, without=common) for name, command, context in commands]
    return "\n".join(parts)


def _options(command: click.Command, context: click.Context) -> list[tuple[str, ...]]:
    records = [option.get_help_record(context) for option in command.params if isinstance(option, click.Option)]
    return [(f"`{record[0]}`", record[1]) for record in records if record]


def _as_code(match: re.Match[str]) -> str:
    return f"```sh\n{inspect.cleandoc(match[1])}\n```\n"


def _command(name: str, command: click.Command, context: click.Context, *, without: Container[tuple[str, ...]]) -> str:
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    rows = [row for row in _options(command, context) if row not in without]
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    text = re.sub(r"Examples:\n((?:  .+(?:\n|$))+)", _as_code, text).rstrip()
    return f"### {name}\n\n    {usage}\n\n{text}\n" + (f"\n{_table(('option', 'meaning'), rows)}" if rows else "")


def environment() -> str:
    """Return the page of the environment variables that Romou reads."""
    from romou.base.environment import VARIABLES

    rows = [(f"`{name}`", one.help, one.default) for name, one in VARIABLES.items()]
    head = "`romou doctor` complains about a `ROMOU_` name that is none of these."
    return f"# Environment variables\n\n{head}\n\n{_table(('variable', 'meaning', 'where it is not set'), rows)}"


def knobs() -> str:
    """Return the page of the knobs of all schedules, of Boda's variants, and of the criteria that prune spaces."""
    from romou.compiler.operators.costs.criteria import CRITERIA
    from romou.compiler.operators.families import declared_knobs

    rows = [
        (f"`{knob.name}`", ", ".join(map(_spelled, knob.choices)), _spelled(knob.default), knob.devices, knob.help)
        for knob in declared_knobs().values()
    ]
    reasons = [
        (f"`{name}`", " ".join(inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0].split()))
        for name, function in CRITERIA.items()
    ]
    return f"""# Knobs, criteria and variants

What a schedule leaves open is a knob. An operator has some of these, with choices that fit its shape.
`romou inspect MODEL --knobs` shows them for a model, `romou space MODEL` how many configs there are.

## Knobs

{_table(("knob", "choices", "default", "devices", "meaning"), rows)}
## Criteria of pruning

A criterion excludes configs before anything is compiled. The order is that in which criteria give way if fewer than 64
configs would be left. [Pruning](../evidence/criteria.md) shows what two ways to count bytes keep.

{_table(("criterion", "meaning"), reasons)}
## Boda's variants

`--variant NAME` keeps the operators that have a variant to it. [Boda's variants](../evidence/variants.md) has what each
one takes.

{_variants()}"""


def devices() -> str:
    """Return the page of the device files, their families, and the presets with all numbers."""
    from romou.devices.hardware import known_families, known_shipped_devices, load_device, load_family
    from romou.devices.presets import known_presets, preset_for
    from romou.devices.presets.files import own_numbers_of, read_preset

    known = [load_device(name) for name in known_shipped_devices()]
    files = [
        (f"`{spec.name}`", spec.title, spec.family or "", f"[{preset_for(spec).name}](#{preset_for(spec).name})")
        for spec in known
    ]
    families = [
        (f"`{name}`", load_family(name)["title"], load_family(name).get("family", "")) for name in known_families()
    ]
    parts = [
        "# Devices and presets",
        "A device file holds facts with unit and source: `romou devices --facts NAME` prints them. A family holds what"
        " its devices have in common. A preset holds the numbers of default configs that are fitted to a compiler or a"
        " device; what it leaves out is taken from the preset that it is like.",
        "## Devices\n\n" + _table(("name", "device", "family", "preset"), files),
        "## Families\n\n" + _table(("name", "devices", "part of"), families),
        "## Presets",
    ]
    for name in known_presets():
        data = read_preset(name)
        like = f" Like [{data['like']}](#{data['like']}), but for:" if "like" in data else ""
        rows = [
            (f"`{section}.{key}`", _spelled(number["value"]), number["unit"], number["fitted_to"], number["source"])
            for section, numbers in own_numbers_of(name).items()
            for key, number in numbers.items()
        ]
        head = ("number", "value", "unit", "fitted to", "source")
        parts.append(f"### {name}\n\n{data['title']}.{like}\n\n{_table(head, rows)}")
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _spelled(choice: object) -> str:
    return ("no", "yes")[choice] if isinstance(choice, bool) else str(choice)


def python() -> str:
    """Return the page of the public names of `romou` with their docstrings."""
    import romou

    parts = ["# Python interface\n\nEverything here is an attribute of `romou`. Classes list their public methods.\n"]
    for name in sorted(romou.__all__, key=str.lower):
        found = getattr(romou, name)
        parts.append(_documented(f"romou.{name}", found, level=2))
        for method, held in vars(found).items() if inspect.isclass(found) else ():
            if not method.startswith("_") and (
                inspect.isfunction(held) or isinstance(held, (property, classmethod, staticmethod))
            ):
                parts.append(_documented(f"{name}.{method}", held, level=3))
    for module in (romou.operators, romou.training):
        parts += [
            _documented(f"romou.{module.__name__.rpartition('.')[2]}.{name}", getattr(module, name), level=2)
            for name in module.__all__
            if name not in romou.__all__
        ]
    return "\n".join(parts)


def _documented(name: str, found: Any, *, level: int) -> str:
    function = getattr(found, "__func__", found)
    signature = "" if isinstance(found, property) or inspect.isclass(found) else _signature(name, function)
    return f"{'#' * level} {name}\n\n{signature}{_markdown(inspect.getdoc(found) or '')}\n"


def _signature(name: str, function: Callable[..., Any]) -> str:
    given = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
    parts: list[str] = []
    is_keyword = False
    for parameter in given:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword:
            parts, is_keyword = [*parts, "*"], True
        parts.append(re.sub(r": '([^']*)'", r": \1", str(parameter)))
    lines = "".join(f"    {part},\n" for part in parts)
    returns = inspect.signature(function).return_annotation
    return f"```text\n{name}({chr(10) + lines if lines else ''}) -> {returns}\n```\n\n"


def _markdown(text: str) -> str:
    """Return a NumPy docstring as Markdown: titles of sections in bold, entries of sections and tables as items."""
    lines = text.splitlines()
    out: list[str] = []
    is_section = False
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        field = _FIELD.fullmatch(line)
        if below and set(below) == {"-"}:
            is_section = True
            out += [f"**{line}**", ""]
        elif field is not None:
            out.append(f"- `{field[1] or field[3]}`: {field[2] or field[4]}")
        elif is_section and line and not line[0].isspace() and below.startswith("    "):
            out.append(f"- `{line}`")
        elif not line or set(line) != {"-"}:
            out.append(
                f"  {line.strip()}" if line.startswith("    ") and out and out[-1].startswith(("- ", "  ")) else line
            )
    return "\n".join(out)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [
        head,
        tuple("---" for _ in head),
        *(tuple(" ".join(cell.split()).replace("|", "\\|") for cell in row) for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def pipeline() -> str:
    """Return the page of all stages of the compiler, in order."""
    from romou.compiler import pipeline as lists

    head = (
        "Every pass of the compiler, in order, as `romou/compiler/pipeline.py` lists them. Names in CamelCase are TVM's"
        " passes. `ROMOU_DUMP=all` and `romou inspect MODEL --stages` write the module after each stage to a file with"
        " its number; of ONNX after those stages that change the model."
    )
    parts = [f"# The pipeline\n\n{head}"]
    for title, stages in (
        ("ONNX: operators that have kernels, constants folded, precisions chosen", lists.ONNX),
        ("Graph: a model in Relax becomes fused functions", lists.GRAPH),
        ("Module: fused functions become scheduled kernels and calls of them", lists.MODULE),
        ("Kernel: a scheduled kernel becomes a host function and a device function", lists.KERNEL),
        ("Host functions", lists.HOST),
        ("Device functions", lists.DEVICE),
    ):
        rows = [(str(stage.number), f"`{stage.name}`", stage.reason) for stage in stages]
        parts.append(f"## {title}\n\n{_table(('', 'stage', 'reason'), rows)}".rstrip())
    return "\n\n".join(parts) + "\n"


def _variants() -> str:
    """Return the table of Boda's variants."""
    from romou.base.variants import VARIANTS

    every = [
        {f"`{knob}={' or '.join(map(_spelled, c))}`": None for knob, c in v.choices.items()} for v in VARIANTS.values()
    ]
    common = {text: None for text in every[0] if all(text in others for others in every)}
    rows = [
        (
            f"`{name}`",
            variant.title,
            variant.windows.value,
            ", ".join(text for text in choices if text not in common) or "all",
            f"`-images={variant.images}`" if variant.images else "",
        )
        for (name, variant), choices in zip(VARIANTS.items(), every, strict=True)
    ]
    head = ("variant", "what it is in Boda", "operators", "knobs here", "target")
    return f"{_table(head, rows)}\nIn all of them: {', '.join(common)}.\n"


def phones() -> str:
    """Return the page of the phones and systems on a chip that `--device` takes by name."""
    from romou.devices.hardware import known_socs, load_device

    socs = [(soc, load_device(soc.gpu).title) for soc in known_socs()]
    named = sorted(
        ((phone, soc.name, gpu, f"`{soc.gpu}`") for soc, gpu in socs for phone in soc.phones),
        key=lambda row: row[0].lower(),
    )
    chips = [(soc.name, ", ".join(soc.models), gpu, f"`{soc.gpu}`") for soc, gpu in socs]
    return f"""# Which phone has which GPU

Give `--device` the name of a phone, of its system on a chip, of the GPU, or a model number:
`romou check model.onnx --device "{named[0][0]}"`. You may leave the maker out: S23 is the Samsung Galaxy S23.

If your phone is missing, look up its system on a chip on the maker's page, and give that name. If that is missing too,
[measure the phone with ArchProbe](../guide/archprobe.md) or
[add a device file](../contributing/extending.md#a-device).

## Phones

{_table(("phone", "system on a chip", "GPU", "`--device`"), named)}
## Systems on a chip

{_table(("system on a chip", "model numbers", "GPU", "`--device`"), chips)}"""


# The pages that are written when the site is built.
PAGES: dict[str, Callable[[], str]] = {
    f"docs/reference/{function.__name__}.md": function
    for function in (cli, python, knobs, devices, phones, environment, pipeline)
}


def pages() -> list[str]:
    """Return the pages that this script fills figures into."""
    files = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("*/README.md")), *ROOT.glob("docs/*/*.md")]
    return [str(file.relative_to(ROOT)) for file in (*files, *ROOT.glob("benchmarks/*/README.md"))]


@click.command()
@click.option(
    "--check", is_flag=True, help="Write nothing. Exit code 1 if a page or a figure is not as it would be written."
)
@click.option("--slow", is_flag=True, help="Also run the commands of figures that are printed slowly, for hours.")
@click.option("--only", default="", help="Only pages whose path holds this text.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="Folder of files that commands read and that are not here."
)
def main(check: bool, slow: bool, only: str, data: Path | None) -> None:
    """Write the figures in all documents."""
    wrong, left_out = [], set[str]()
    for path in (page for page in pages() if only in page):
        before = (ROOT / path).read_text()
        page = with_printed(before, slow=slow, data=data, left_out=left_out)
        if check:
            wrong += [path] * (page != before)
            for line in difflib.unified_diff(before.splitlines(), page.splitlines(), path, "now", lineterm="", n=0):
                click.echo(line)
        elif (page := with_measured(page)) != before:
            (ROOT / path).write_text(page)
            click.echo(f"wrote {path}")
        for line in re.findall(r"^\*.*older than the code\.\*$", with_measured(page), re.MULTILINE):
            click.echo(f"stale: {path}: {line.strip('*')}")
    for command in sorted(left_out):
        click.echo(f"not run: {command}")
    if wrong:
        raise SystemExit(f"python scripts/make_docs.py writes: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
