"""Outputs are the list that they were, and have names."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import romou


def made() -> romou.Outputs:
    return romou.Outputs(("logits", "mask"), [np.ones((1, 3), np.float32), np.zeros(2, np.int64)])


def test_a_list_and_by_name() -> None:
    outputs = made()
    assert isinstance(outputs, list)
    assert len(outputs) == 2
    logits, mask = outputs
    assert outputs["logits"] is outputs[0] is logits
    assert outputs["mask"] is outputs[-1] is mask
    assert outputs.names == outputs.keys() == ("logits", "mask")
    assert {name: array.shape for name, array in dict(outputs).items()} == {"logits": (1, 3), "mask": (2,)}
    assert [array.shape for array in outputs[:1]] == [(1, 3)]


def test_an_unknown_name_says_the_nearest() -> None:
    with pytest.raises(romou.UsageError, match="unknown output 'logit'; known: logits, mask\nDid you mean 'logits'?"):
        made()["logit"]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda outputs: pickle.loads(pickle.dumps(outputs))])
def test_names_stay_with_copies(again: object) -> None:
    found = again(made())  # type: ignore[operator]
    assert found.names == ("logits", "mask")
    np.testing.assert_array_equal(found["logits"], made()["logits"])


def test_each_name_has_an_array() -> None:
    with pytest.raises(ValueError, match="zip"):
        romou.Outputs(("a", "b"), [np.zeros(1)])
