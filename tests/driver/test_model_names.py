"""Names of models: a path, or bundled:NAME."""

from __future__ import annotations

import pytest

import romou


def test_a_missing_file_with_the_name_of_a_network_says_so() -> None:
    with pytest.raises(romou.ModelError, match="resnet18: no such file(?s:.*)bundled:resnet18 is a bundled network"):
        romou.compile("resnet18", target="null")


def test_a_missing_file_lists_the_networks() -> None:
    with pytest.raises(romou.ModelError, match="none.onnx: no such file(?s:.*)Bundled networks: bundled:alexnet, "):
        romou.inspect("none.onnx", target="null")
