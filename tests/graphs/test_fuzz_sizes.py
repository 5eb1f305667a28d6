"""Random models with sizes at run time: the smallest form of the fuzzer."""

from __future__ import annotations

import pytest

import fuzz_sizes
from fuzz_sizes import CAUGHT, FAULTS, REFUSED, RIGHT, TARGETS, UNCLEAR, WRONG, fuzz, reasons, run_case
from size_models import SizeModel, model_of

SEED, CASES = 20261128, 4


def test_random_models_are_right_or_refused(opencl_device: object) -> None:
    print(f"seed {SEED}: python tests/stress/fuzz_sizes.py --seed {SEED} --cases {CASES}")
    results = [run_case(SEED, number, TARGETS[number % len(TARGETS)]) for number in range(CASES)]
    assert not [result for result in results if result[0] in (*FAULTS, CAUGHT)]
    assert RIGHT in {outcome for outcome, _ in results}


def test_models_are_the_same_each_time_and_of_many_blocks() -> None:
    models = [model_of(5, number) for number in range(120)]
    assert [each.model for each in models] == [model_of(5, number).model for number in range(120)]
    blocks = {name for each in models for name in each.blocks}
    assert {"recurrent", "half", "roll", "attention", "conv_tokens", "flat", "join", "pad", "conv", "pool"} <= blocks
    assert {len(each.dims) for each in models} == {1, 2, 3}


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [(["{'tokens': 3}: 2 of 8 elements differ"], WRONG), (fuzz_sizes.ModelError("two\nlines"), UNCLEAR)],
)
def test_faults_are_counted(fault: list[str] | Exception, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(case: SizeModel, target: str, **_: object) -> list[str]:
        if isinstance(fault, Exception):
            raise fault
        return fault

    monkeypatch.setattr(fuzz_sizes, "wrong_at", planted)
    assert run_case(1, 0, TARGETS[0])[0] == outcome
    assert outcome in FAULTS
    refused = fuzz_sizes.Result(0, REFUSED, "conv", "the kernel fused_conv2d1 takes no size", 1.0)
    assert dict(reasons([refused])) == {"the kernel … takes no size": 1}
    assert fuzz(range(0), seed=1) == []
