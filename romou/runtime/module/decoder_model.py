"""The compiled models of a language model's decoder, with weights and caches on the device once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from romou.base.errors import ModelError
from romou.base.model_bytes import MemoryUse
from romou.compiler.frontend.decoder_form import DecoderForm
from romou.runtime.deploy import Variant
from romou.runtime.module.multi_shape import MultiShapeModel
from romou.runtime.module.tuned_model import TunedModel

# Entry of a saved decoder's manifest.
ENTRY = "decoder"
# File of the tokenizer, beside an ONNX file and in a saved decoder.
TOKENIZER = "tokenizer.json"


class DecoderModel(MultiShapeModel):
    """What `romou.Decoder` runs. `romou.load` returns it for a saved decoder.

    `export_android` writes it for `romou_decode` of romou.h.

    Parameters
    ----------
    models
        The model for one token, which loads the library, and the one for a chunk of a prompt if that is more.
    memory
        Memory on the device of both, each with its caches.
    form
        Names and sizes.
    tokenizer
        Content of the tokenizer's file. None: there is none.

    Raises
    ------
    ValueError
        The models are not those of the form.
    """

    def __init__(
        self, models: Sequence[TunedModel], *, memory: MemoryUse, form: DecoderForm, tokenizer: bytes | None = None
    ) -> None:
        if len(models) != min(form.chunk, 2):
            raise ValueError("it has other models than a decoder")
        for model, rows in zip(models, (1, form.chunk), strict=False):
            types = model.built.output_types
            caches = {past: types.get(present, ((), ""))[0] for past, present in form.state.items()}
            if {name: shape for name, (shape, _) in model.inputs.items()} != form.shapes(rows, caches):
                raise ValueError("its models have other inputs")
            known = {*form.state.values(), form.token}
            others = [name for name in model.outputs if name not in known]
            if types.get(form.token) != ((1, 1), "int64") or len(others) != 1:
                raise ValueError("its models have other outputs")
            self.logits = others[0]
        super().__init__(models, memory=memory)
        self.form, self.tokenizer = form, tokenizer

    def _of(self, models: Sequence[TunedModel], memory: MemoryUse) -> DecoderModel:
        return DecoderModel(models, memory=memory, form=self.form, tokenizer=self.tokenizer)

    def _write_beside(self, folder: Path) -> None:
        if self.tokenizer is not None:
            (folder / TOKENIZER).write_bytes(self.tokenizer)

    def _variant(self, host: str) -> Variant:
        return dataclasses.replace(super()._variant(host), decoder=asdict(self.form))

    def _meta(self) -> dict[str, Any]:
        return {**super()._meta(), ENTRY: asdict(self.form)}

    def _check_exportable(self) -> None:
        super()._check_exportable()
        model, others = self.models[0], {*self.form.state.values(), self.form.token}
        numbers = [(name, model.inputs[name][1], ("int32", "int64")) for name in self.form.inputs]
        stored = model.built.stored_outputs.items()
        numbers += [(name, dtype, ("float16", "float32")) for name, (_, dtype) in stored if name not in others]
        for name, dtype, allowed in numbers:
            if dtype not in allowed:
                raise ModelError(f"the decoder cannot be exported: {name} is {dtype}, not {' or '.join(allowed)}")
