"""The smallest run of each script of benchmarks/: its arguments, and a pattern of what it prints."""

from __future__ import annotations

import contextlib
import importlib
import io
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

CONV = "conv2d_1x8x9x9_12_3x3_s1"
# Script -> its arguments, and its output. OUT is replaced by a folder.
RUNS: dict[str, tuple[str, str]] = {
    "bench_backends": (
        "--targets opencl --suite sgemm --only 128x128 --trials 1 --rounds 1 --work-dir OUT",
        r"128x128_128 │ +4 │ +\d+\.\d │ +\d+\.\d │ +\d\.\d\dx",
    ),
    "bench_beast": (
        "--layer 3 --batch 4 --target 'opencl -device=adreno640' --time opencl --shrink 8 --trials 1 --pairs 1",
        r"(?s)all combinations +│ +987,614,208 .* CHWN +│ +\d\.\d\d │ +\d+\.\d\d% .*CHWN takes \d+\.\d+ times .*e[-+]",
    ),
    "bench_check": (
        "--device adreno660 --device malig76",
        # Columns of recorded layers are empty, and left out.
        r"adreno660(.|\n)*small +│ +\d+\.\d \(\d+\.\d to \d+\.\d\) │\n(.|\n)*malig76(.|\n)*small +│ +\d+\.\d │\n",
    ),
    "bench_compare": (
        f"--nodes 0 --operator {CONV} --pairs 1 --real-pairs 2",
        rf"{CONV}, 10% more work: \d\.\d+ times as long",
    ),
    "bench_decoder": (
        "--model OUT/decoder.onnx --prompt 2 --tokens 3 --chunk 1 --copy-mib 1",
        r"decoder.onnx │ float32 +│ +\d+\.\d │ +\d+\.\d │ +\d+\.\d\d │ +\d+\.\d%",
    ),
    "bench_effort": ("--operator 1x1", r"1x1  *(│ +\d+ ){6}│ +\d+\.\d+ │ +\d\.\d+ │ .* 3\.8 "),
    "bench_gain": ("OUT/small.onnx --trials 1,2", r"(?s)small, seed 0, 2 trials: .*geometric mean +│.*\dx │ +of 1 "),
    # Bundled networks are replaced here, and none of those is kept.
    "bench_executed": ("--gpu a830", r"Executed as machine code(.|\n)*0 of 0 functions have equal outputs"),
    "bench_headroom": ("benchmarks/data/spaces_pocl --seeds 1", r"nothing +│ +1\.47x │( +\d\.\d\dx │){6}"),
    "bench_l1": ("--only dense", r"dense, 1024 -> 1000 +│ reread +│ +\d+ │"),
    "bench_launches": ("--target opencl --length 3 --repeat 1", r"opencl: [^│]+│ +\d+\.\d\d │ +\d+\.\d\d │"),
    "bench_integer_products": (
        "--rows 4 --width 16 --layers 1 --repeat 1",
        r"onnxruntime, exact +│ +\d+\.\d │ +\d+\.\d │ +\d+\.\d\d",
    ),
    "bench_integer_convolutions": (
        "--size 16 --width 8 --width 12 --repeat 1",
        r"onnxruntime, exact +│ +\d+\.\d │ +\d+\.\d │ +\d+\.\d\d",
    ),
    "bench_run_time_sizes": (
        "--backend opencl --most 32 --sizes 20 --width 32 --rounds 1 --repeat 1",
        r"attention │ +20 │ +3 │ +\d\.\d+ │ +\d\.\d+ │ +\d+\.\d\d │",
    ),
    "bench_memory": ('small --target "opencl -device=host"', r"small +│ +0\.01 │ +0\.01 │"),
    "bench_models": ("--models small --peers dlight --trials 1 --pairs 1", r"small +│ +\d\.\d+ │(.*│){8} +\d\.\d\dx"),
    "bench_operators": (
        "--only 1x384x8x8_384_1x3 --trials 1 --rounds 1 --work-dir OUT --peak-gflops 100",
        r"other +│ +1 │ +\d+\.\d, .* │ +\d+\.\d, (.|\n)*Figure 14: inception_v3, 4 convolutions",
    ),
    "bench_passes": ("--figure17 --only 18x18", r"conv2d_1x128x18x18_768_1x1_s1 .* -\d\d%"),
    "bench_reports": (
        "--only 1x1 --operators dense --methods pruned --seeds 2 --jobs 1",
        r"pixel4_own +│ +yes │ +- │ +none │(.|\n)*pruned: pixel4_microsoft takes \d\.\d\d times .*: no worse",
    ),
    "bench_rpc": ("--trials 2 --servers 1", r"│ 1 +│ \d+\.\d+ +│ 1.00x"),
    "bench_search": ("--operators dense --seeds 1 --methods random --jobs 1", r"dense +│ \d+ \(\d+ s\)"),
    "bench_settings": (
        "--operators small,dense --settings 8 --trials 1",
        r"small +│ +1\.000 │ +-?\d\.\d{3} │(.|\n)*geometric mean +│.*\d\.\d\dx",
    ),
    "bench_space": ("--device adreno640 --only conv2d_1x16x54x54_64 --jobs 1", r"16x54x54_64_1x1_s1 │ +\d+ │ +\d+ │"),
    "bench_start": ("small --repeat 1", r"small +first( +\d+\.\d+){8}\n +second( +\d+\.\d+){8}"),
    "bench_tuning": ("OUT/small.onnx --trials 1", r"every kernel has a time after 1 trials"),
    "bench_variants": (
        "--operators small --trials 1 --jobs 1",
        r"small +│ +[\d.e+]+\*? │(.|\n)*small +│ +0\.0 │ +3\.\d │ +\d+\.\d │",
    ),
    "kernel_bench": (
        "sgemm --only 128x128 --trials 1 --rounds 1 --peer tvm --work-dir OUT",
        r"128x128_128 │ +4\.2 │ +21\.3 │ +\d+\.\d │",
    ),
    "phone_records": (
        "OUT/phone.log --gpu adreno660 --least 36 --ablate --plot OUT/plot.png",
        r"(?s)float16 +│ +1 │ +36 │ +-?\d\.\d\d .*issuing .* 30 │ +\d+% │ +6 │ +100% │.*registers +│.*factors of two",
    ),
    "phone_schedules": (
        "OUT/phone.log --gpu adreno660 --out OUT/schedules",
        r"adreno_660.jsonl │ +1 │ +1 │ +\d+ │",
    ),
    "phone_searches": (
        "OUT/phone.log --gpu adreno660 --least 36 --strategies ''",
        r"random +│ +1 │ +\d+ │ +\d+ to \d+ │(.|\n)*from the estimate, 1 at a time +│ +1 │ +\d+ │",
    ),
    "pretrain_cost_model": (
        "--spaces OUT/spaces --layers OUT/searched.jsonl.gz --out OUT/model.json.gz",
        r"model.json.gz: \d+ bytes, out of 1 recordings and 1 layers",
    ),
    "pretrain_on_phones": (
        "OUT/phone.log --gpu adreno660 --least 36 --out OUT/phones.ubj.gz",
        r"phones.ubj.gz: \d+ bytes, out of 1 layers",
    ),
    "bench_quantized_products": (
        "--products '1x2048x8192 int4 b32' --configs 0 --rotate 1 --launches 1 --timings 1",
        r"1x2048x8192 int4 b32 │ +[\d.]+ │ +[\d.]+ │ +\d+% │",
    ),
    "searched_layers": ("OUT/layers.jsonl.gz OUT/search", r"layers.jsonl.gz: 1 layers, 1 configs"),
    "published_cpus": (
        "mobilenet_v3_small",
        r"nn-Meter, Snapdragon 855, 1 │ +1 │ +[\d.]+ │ +[\d.]+ │ +1\.00 │ +1\.00 │ +1 │ +0 │ +0 │",
    ),
    "published_exports": ("blazeface style", r"style transfer, Adreno 840[ │]+4[ │]+faster[ │]+[\d.]+"),
    "published_networks": (
        'mobilenet_v2 --gpu "Adreno 630"',
        r"nn-Meter, Adreno 630 │ +1 │ +0\.\d\d │(.|\n)*mobilenet_v2, Adreno 630 │ +10\.2 │ +9\.9 │ +0\.97 │",
    ),
    "published_tiles": (
        "OUT/clblast.json",
        r"(?s)Adreno\(TM\) 740 +│ +3 │ +2 │ +1 │ +1 │ adreno740.*four neighbouring",
    ),
    "record_spaces": ("--out OUT/recorded --operators dense --configs 1 --jobs 1", r"dense: 2 of \d+ \(2 ok\); best"),
}
# The same for scripts that need Mesa's compilers.
MESA_RUNS: dict[str, tuple[str, str]] = {
    "phone_executed": (
        "OUT/phone.log --gpu adreno660 --least 36 --configs 4 --tasks 1",
        r"float16 │ +4 │( +-?\d\.\d\d │){4}\s+│ median of 1 tasks +│ +4 │",
    ),
    "bench_listing4": ("--gpu a630", r"input +│ +image │ +yes │ +\d+ │ +\d+ │"),
    "bench_output_buffers": (
        "--gpu a630 --tiles 1 --check",
        r"(?s)1 x 4 │ +sums │ Adreno 630 .* error: \d\.\de",
    ),
    "bench_mobile_defaults": (
        "--only 160x7x7 --every 4 --gpu a630 --precision float32 --candidates 2",
        r"1x1 160x7x7 -> 960 │ +\d\.\d\d \(0 of 2 spill\) │(.|\n)*a630 f32: 1 of 1 layers, median \d\.\d\d, 0 spill;"
        r" of the first configs 0 of 2 spill, 1 of 1 layers are clean",
    ),
    "bench_mobile_layers": (
        "--only depthwise --candidates 1 --gpu a630 --precision float32",
        r"depthwise 3x3 64x112x112 │ +6\.97 │ \d\.\d\d r\d+(.|\n)*depthwise +│ +1 │ +\d\.\d\dx",
    ),
    "bench_mobile_space": (
        "--only 1x1 --gpu a630 --configs 1 --most 1 --jobs 1 --cache OUT/counts.jsonl",
        r"1x1 256x14x14 -> 256 │ +\d+ │ +\d\.\d\d │",
    ),
    "bench_mobile_static": (
        "--only 512x14x14 --candidates 0 --gpu a630",
        r"depthwise 512x14x14 -> 512 /1 │ +\d\.\d\d │",
    ),
    "bench_quantized": (
        "--gpu a630 --product 'int4, block 32, 1 row' --product '8-bit integers, 1 row, float'"
        " --product 'depthwise 3x3 256x28x28, both of bytes'",
        r"(?s)int4, block 32, 1 row +│ +[34]\.\d\d │.*1 row, float +│ +5\.\d\d │.*both of bytes +│ +1\d\.\d\d │",
    ),
    "bench_registers": ("--configs 2 --jobs 1", r"[12] configs; rank correlation"),
}
# Their exit code says whether figures are as they should be.
JUDGED = {"bench_compare", "bench_registers"}


def printed_by(script: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a script in this process, check that it ends without an error, and return its output."""
    arguments = [word.replace("OUT", str(folder)) for word in shlex.split(words)]
    main: Any = importlib.import_module(script).main
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main()
        except SystemExit as end:
            # bench_compare and bench_registers judge their figures, which a smallest run does not give.
            assert end.code in ((0, 1) if script in JUDGED else (0, None)), end.code
    return out.getvalue()
