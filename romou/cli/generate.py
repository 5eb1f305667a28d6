"""romou generate: tokens that a language model's decoder makes of a prompt."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from romou.base.errors import UsageError
from romou.cli.click_options import options_of
from romou.cli.common import console, debug_option, json_option, print_json
from romou.cli.models import read_model
from romou.driver.options import CompileOptions


@click.command("generate")
@click.argument("model")
@click.option("--prompt", required=True, metavar="ID,ID,...", help="Tokens of the prompt, as numbers.")
@click.option("--tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Tokens to generate.")
@click.option("--stop", type=int, multiple=True, metavar="ID", help="A token that ends the text.")
@click.option("--length", type=click.IntRange(min=1), default=None, help="Tokens that the caches have room for.")
@click.option(
    "--chunk", type=click.IntRange(min=1), default=32, show_default=True, help="Tokens of the prompt in one run."
)
@click.option(
    "--trials",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Candidates to measure, as of romou tune.",
)
@options_of(CompileOptions, "target", "device", "verify", "precision", "max_memory", "strict")
@json_option
@debug_option
def command(model: str, prompt: str, tokens: int, stop: tuple[int, ...], is_json: bool, **options: Any) -> None:
    """Print the tokens that follow a prompt, and the tokens a second.

    MODEL is an ONNX file of a decoder with caches, as onnxruntime-genai exports it, or bundled:decoder. Each step takes
    the most likely token. Words are no tokens: a tokenizer turns them into numbers.

    \b
    Examples:
      romou generate bundled:decoder --prompt 1,15,27 --tokens 16
      romou generate decoder.onnx --prompt 1,15,27 --length 1024 --stop 2
    """
    try:
        ids = [int(token) for token in prompt.split(",")]
    except ValueError:
        raise UsageError(f"--prompt {prompt!r}: expected numbers", hint="For example --prompt 1,15,27.") from None
    source = read_model(model)
    import romou

    made = romou.Decoder(source, **options).generate(ids, tokens, stop=stop)
    if is_json:
        print_json({**dataclasses.asdict(made), "prompt_rate": made.prompt_rate, "rate": made.rate})
        return
    out = console(is_json=False)
    out.print(",".join(map(str, made.tokens)), markup=False, soft_wrap=True)
    rate = "" if made.rate is None else f", {made.rate:.1f} generated tokens a second"
    out.print(f"{made.prompt_rate:.1f} tokens of the prompt a second{rate}", markup=False)
