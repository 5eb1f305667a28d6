"""Tokens as a loop around onnxruntime makes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from romou.compiler.frontend.onnxruntime_session import cpu_session


def onnxruntimes_tokens(model: onnx.ModelProto, prompt: Sequence[int], tokens: int) -> list[int]:
    """Return the tokens of a greedy loop, one token at a time. Fail if two are about equally likely."""
    session = cpu_session(model)
    names = [output.name for output in session.get_outputs()]
    shapes = {value.name: value.shape for value in session.get_inputs()}
    caches = {name: np.zeros(shape, "float32") for name, shape in shapes.items() if name.startswith("past")}
    ids = list(prompt)
    for at in range(len(prompt) + tokens - 1):
        mask = (np.arange(shapes["attention_mask"][1]) <= at)[None].astype("int64")
        results = session.run(None, {"input_ids": np.array([[ids[at]]]), "attention_mask": mask, **caches})
        outputs = dict(zip(names, results, strict=True))
        caches = {name: outputs[name.replace("past_key_values", "present")] for name in caches}
        if at >= len(prompt) - 1:
            second, first = np.sort(outputs["logits"].ravel())[-2:]
            assert first - second > 1e-4, "no test: the logits decide nothing"
            ids.append(int(outputs["logits"].argmax()))
    return ids[len(prompt) :]


def prompt_of(length: int, words: int) -> list[int]:
    return np.random.default_rng(length).integers(0, words, length).tolist()
