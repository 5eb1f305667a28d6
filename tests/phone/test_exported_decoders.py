"""romou_decode: an exported decoder makes onnxruntime's tokens from C, with its caches on the device."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

import romou
from romou.base.errors import ModelError
from romou.cli import main
from romou.models.decoder import DecoderShape, decoder
from support.models.appending_decoder import appending_decoder
from support.models.decoding import onnxruntimes_tokens, prompt_of
from support.models.small_networks import prime_net
from support.servers.phone_servers import APP, ARM64, HERE, compile_c
from support.suite.exhaustive import exhaustive

SMALL = DecoderShape(layers=1, width=64, heads=4, size=16, inner=96, words=256, longest=100)
CHUNK, TOKENS, TRIALS = 4, 64, 6
OK, INVALID = 0, 1
APPENDING = "a Concat appends to the caches"


def model_of(form: DecoderShape | str) -> onnx.ModelProto:
    model = decoder(form) if isinstance(form, DecoderShape) else appending_decoder(layers=1, words=SMALL.words)
    return onnx.load_from_string(model.SerializeToString())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function: (target, form, trials) -> the folder of a saved decoder."""
    folder = tmp_path_factory.mktemp("saved")

    def save(target: str, form: DecoderShape | str, trials: int = 0) -> Path:
        path = folder / f"{form if isinstance(form, str) else form.width} {trials} {target}"
        if not path.exists():
            options: dict[str, object] = {"seconds": 60, "work_dir": False} if trials else {}
            options |= {"length": SMALL.longest} if isinstance(form, str) else {}
            made = romou.Decoder(model_of(form), chunk=CHUNK, target=target, trials=trials, verify=False, **options)
            # A model that is only compiled has no trials.
            assert [sum(row.trials for row in model.summary().rows) > 0 for model in made.models] == [trials > 0] * 2
            made.save(path)
        return path

    return save


def export(saved: Path, folder: Path, host: str) -> Path:
    arguments = ["export", str(saved), "--android", str(folder), "--host", host, "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "run_model.py" not in result.stdout
    return folder


@pytest.mark.parametrize(
    ("target", "form", "trials"),
    [
        ("opencl -device=host", SMALL, 0),
        ("null", SMALL, 0),
        ("opencl -device=host", APPENDING, 0),
        pytest.param("opencl -device=host", SMALL, TRIALS, marks=exhaustive),
        pytest.param("opencl -device=host", DecoderShape(), 0, marks=exhaustive),
    ],
)
def test_tokens_are_onnxruntimes(
    target: str,
    form: DecoderShape | str,
    trials: int,
    saved: Callable[..., Path],
    host_runtime: Path,
    tmp_path: Path,
) -> None:
    """And the second start compiles nothing."""
    prompt = prompt_of(21, SMALL.words)
    program = compile_c(APP / "generate.c", host_runtime, tmp_path / "generate")
    exported = export(saved(target, form, trials), tmp_path / "out", HERE)
    command = [str(program), str(exported), str(TOKENS), *map(str, prompt)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ",".join(map(str, onnxruntimes_tokens(model_of(form), prompt, TOKENS))) + "\n"
    rates, about = done.stderr.splitlines()
    assert "generated tokens a second" in rates
    assert json.loads(about)["programs"].get("compiled", 0) == 0
    bench = [str(host_runtime / "romou_bench"), str(exported), "--repeats", "1", "--hold", "0"]
    assert "run " in subprocess.run(bench, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("shape", "trials"),
    [
        (SMALL, 0),
        pytest.param(SMALL, TRIALS, marks=exhaustive),
        pytest.param(DecoderShape(), 0, marks=exhaustive),
    ],
    ids=["small", "tuned", "bundled"],
)
def test_tokens_on_arm64(
    shape: DecoderShape,
    trials: int,
    saved: Callable[..., Path],
    arm64: Path,
    arm64_runtime: Path,
    tmp_path: Path,
) -> None:
    prompt = prompt_of(21, shape.words)
    program = compile_c(APP / "generate.c", arm64_runtime, tmp_path / "generate", "aarch64-linux-gnu-gcc")
    exported = export(saved("null", shape, trials), tmp_path / "out", ARM64)
    command = [str(arm64), str(program), str(exported), str(TOKENS), *map(str, prompt)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ",".join(map(str, onnxruntimes_tokens(decoder(shape), prompt, TOKENS))) + "\n"


@pytest.mark.parametrize("form", [SMALL, APPENDING], ids=["written", "appended"])
def test_texts_go_on_and_mistakes_are_codes(
    form: DecoderShape | str, saved: Callable[..., Path], host_runtime: Path, tmp_path: Path
) -> None:
    """A text read in pieces, or after a rewind, has the same successor. A mistake leaves what was read."""
    program = compile_c(Path(__file__).with_name("use_decoder.c"), host_runtime, tmp_path / "use")
    exported = export(saved("null", form), tmp_path / "out", HERE)
    prompt = prompt_of(21, SMALL.words)
    command = [str(program), str(exported), *map(str, prompt)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.partition(": ") for line in done.stdout.splitlines()]
    successor = onnxruntimes_tokens(model_of(form), prompt, 1)[0]
    texts = {what: text for what, _, text in lines}
    assert texts == {
        "at once": f"{OK} {successor}",
        "largest logit": f"{OK} {successor}",
        "mapped": f"{OK} {successor}",
        "decode mapped": f"{INVALID} logits is mapped; unmap it first",
        "too many": f"{INVALID} 21 tokens and 80 more do not fit into caches of 100;"
        " call romou_rewind, or export a decoder with a larger `length`",
        "unknown token": f"{INVALID} there is no token 256; the model's vocabulary has 0 to 255",
        "negative token": f"{INVALID} there is no token -1; the model's vocabulary has 0 to 255",
        "no token": f"{INVALID} there is no token; give at least one",
        "NULL tokens": f"{INVALID} tokens is NULL",
        "NULL next": f"{INVALID} next is NULL",
        "NULL model": f"{INVALID} model is NULL",
        "rewind too far": f"{INVALID} the decoder has read 21 tokens, not 22",
        "run": f"{INVALID} the model is a decoder; romou_decode runs it",
        "set": f"{INVALID} the model has no input input_ids; it has ",
        "again": f"{OK} {successor}",
        "in pieces": f"{OK} {successor}",
        "in twos": f"{OK} {successor}",
    }


def test_other_models_are_no_decoders(host_runtime: Path, tmp_path: Path) -> None:
    exported = romou.compile(prime_net(), target="null", verify=False).export_android(tmp_path / "net", host=HERE)
    program = compile_c(APP / "generate.c", host_runtime, tmp_path / "generate")
    done = subprocess.run([str(program), str(exported), "1", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "generate: the model is no decoder; romou_run runs it\n"
    with pytest.raises(ModelError, match="a saved model, but no decoder"):
        romou.Decoder.load(romou.compile(prime_net(), target="null", verify=False).save(tmp_path / "saved"))
