"""Tokens as a loop around onnxruntime makes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from romou.compiler.frontend.onnxruntime_session import cpu_session

_DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16"}


def onnxruntimes_tokens(model: onnx.ModelProto, prompt: Sequence[int], tokens: int) -> list[int]:
    """Return the tokens of a greedy loop, one token at a time. Fail if two are about equally likely."""
    session = cpu_session(model)
    names = [output.name for output in session.get_outputs()]
    shapes = {value.name: value.shape for value in session.get_inputs()}
    fixed = {name: [1, *(size if isinstance(size, int) else 0 for size in shape[1:])] for name, shape in shapes.items()}
    dtypes = {value.name: _DTYPES.get(value.type) for value in session.get_inputs()}
    caches = {name: np.zeros(shape, dtypes[name]) for name, shape in fixed.items() if name.startswith("past")}
    ids = list(prompt)
    for at in range(len(prompt) + tokens - 1):
        # The mask is as long as caches of a fixed length, or as the tokens.
        mask = np.arange(fixed["attention_mask"][1] or at + 1) <= at
        values = {"input_ids": ids[at : at + 1], "attention_mask": mask, "position_ids": [at]}
        given = {name: np.array(value, "int64")[None] for name, value in values.items() if name in shapes}
        results = session.run(None, {**given, **caches})
        outputs = dict(zip(names, results, strict=True))
        caches = {name: outputs[name.replace("past_key_values", "present")] for name in caches}
        if at >= len(prompt) - 1:
            second, first = np.sort(outputs["logits"].ravel())[-2:]
            assert first - second > 1e-4, "no test: the logits decide nothing"
            ids.append(int(outputs["logits"].argmax()))
    return ids[len(prompt) :]


def prompt_of(length: int, words: int) -> list[int]:
    return np.random.default_rng(length).integers(0, words, length).tolist()
