"""romou docs: pages of the documentation in the terminal."""

from __future__ import annotations

import click

from romou.base.errors import unknown_name
from romou.base.pages import stored_pages
from romou.cli.common import console, debug_option, json_option, print_json


@click.command("docs")
@click.argument("topic", required=False)
@json_option
@debug_option
def command(topic: str | None, is_json: bool) -> None:
    """Print a page of the documentation. Without a topic, list the pages.

    \b
    Examples:
      romou docs
      romou docs shapes
    """
    pages = stored_pages()
    if topic is not None and topic not in pages:
        raise unknown_name("page", topic, pages)
    texts = {name: path.read_text(encoding="utf-8") for name, path in pages.items() if topic in (None, name)}
    out = console(is_json=is_json)
    if is_json:
        print_json(texts)
    elif topic is None:
        for name, text in texts.items():
            click.echo(f"{name:22} {text.partition('# ')[2].splitlines()[0]}")
    elif out.is_terminal:
        from rich.markdown import Markdown

        out.print(Markdown(texts[topic]))
    else:
        click.echo(texts[topic])
