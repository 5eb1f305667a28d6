"""romou generate: tokens that a language model's decoder makes of a prompt."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from romou.base.errors import UsageError
from romou.cli.click_options import options_of
from romou.cli.common import announce, console, debug_option, is_quiet, json_option, print_json
from romou.cli.models import read_model
from romou.driver.options import CompileOptions


@click.command("generate")
@click.argument("model")
@click.option("--prompt", required=True, metavar="TEXT", help="A text, or tokens as numbers: 1,15,27.")
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
@click.option("--temperature", type=float, default=0.0, show_default=True, help="Draw tokens; 0: the most likely ones.")
@click.option(
    "--top-k", type=click.IntRange(min=1), default=None, metavar="K", help="Draw from the K most likely tokens."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the draws.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None, help="Save the decoder in this folder.")
@options_of(CompileOptions, "target", "device", "verify", "precision", "max_memory", "strict")
@json_option
@debug_option
def command(
    model: str,
    prompt: str,
    tokens: int,
    stop: tuple[int, ...],
    temperature: float,
    top_k: int | None,
    seed: int,
    output: Path | None,
    is_json: bool,
    **options: Any,
) -> None:
    """Print the tokens that follow a prompt, each as soon as it is known, and the tokens a second.

    MODEL is an ONNX file of a decoder with caches, as onnxruntime-genai or optimum exports it, or bundled:decoder. Or a
    folder that --output wrote, which is not compiled again. Each step takes the most likely token, unless --temperature
    is given. A tokenizer.json beside the file turns text into tokens, and is saved with the decoder (romou[text]).

    \b
    Examples:
      romou generate bundled:decoder --prompt 1,15,27 --tokens 16 -o decoder.romou
      romou generate decoder.romou --prompt 1,15,27 --temperature 0.7 --top-k 40
      romou generate decoder.onnx --prompt "Once upon a time" --length 1024 --stop 2
    """
    is_text = re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", prompt) is None
    decoder = _decoder(model, is_text, options)
    ids = decoder.tokens_of(prompt) if is_text else [int(token) for token in prompt.split(",")]
    if output is not None:
        decoder.save(output)
    from romou.tuner.search.progress import Step

    with Step("The driver compiles the kernels, which no rate counts", not is_quiet()):
        decoder.generate(ids[-decoder.chunk :], min(tokens, 2), stop=stop)
    out = console(is_json=is_json)
    shown = decoder.text_of if is_text else lambda tokens: ",".join(map(str, tokens))
    told: list[int] = []
    printed = ""

    def tell(token: int) -> None:
        nonlocal printed
        told.append(token)
        text = shown(told)
        if not text.endswith("\ufffd"):  # else the character is not whole
            out.print(text[len(printed) :], end="", markup=False, highlight=not is_text, soft_wrap=True)
            printed = text

    made = decoder.generate(
        ids,
        tokens,
        stop=stop,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        on_token=None if is_json else tell,
    )
    if is_json:
        text = {"text": shown(made.tokens)} if is_text else {}
        print_json({**dataclasses.asdict(made), "prompt_rate": made.prompt_rate, "rate": made.rate, **text})
        return
    out.print(shown(told)[len(printed) :], markup=False, highlight=not is_text, soft_wrap=True)
    rate = "" if made.rate is None else f", {made.rate:.1f} generated tokens a second"
    where = decoder.models[0].target
    out.print(f"{made.prompt_rate:.1f} tokens of the prompt a second{rate}, on {where}", markup=False)


def _decoder(model: str, is_text: bool, options: dict[str, Any]) -> Any:
    """Return the decoder in a saved folder, or one that is compiled now."""
    import romou

    if not (Path(model) / "romou.json").is_file():
        source = read_model(model)
        from romou.api.tokenizer import content_beside, tokenizer_of
        from romou.devices.targets import Target

        if is_text:
            tokenizer_of(content_beside(source), None)  # an error comes before minutes of compiling
        options["target"] = Target(options["target"])
        announce(options["target"], options["device"], None)
        if not is_quiet():
            click.echo("Compiling the model for a chunk of the prompt and for one token ...", err=True)
        return romou.Decoder(source, **options)
    context = click.get_current_context()
    given = [name for name in options if context.get_parameter_source(name) == ParameterSource.COMMANDLINE]
    if others := sorted({*given} - {"device"}):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise UsageError(f"{names}: {model} is compiled already", hint="Give the ONNX file to compile it anew.")
    if not is_quiet():
        click.echo("Loading the decoder ...", err=True)
    loaded = romou.Decoder.load(model, device=0 if options["device"] is None else options["device"])
    announce(loaded.models[0].target, loaded.models[0].device_index, None)
    return loaded
