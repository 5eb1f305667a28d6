"""Pretrained cost models: trees that correct the estimate on a device, trained on what was recorded there.

They were trained on sums of products: in OpenCL without tensor cores, and for the H200 also through CUDA with floats
split for them. Backends with OpenCL in `learns_from` use them too.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from romou.base.errors import RecordError
from romou.base.files import digest_of, read_file
from romou.base.foreign import refused, unzipped
from romou.compiler.operators.costs.features import aligned, kernel_types, known_columns
from romou.compiler.operators.families.bases.contraction_template import ContractionTemplate
from romou.devices.targets import Target

logger = logging.getLogger("romou")

_FOLDER = Path(__file__).parent / "pretrained_models"
# The content ends with its SHA-256 in hex digits. It reveals damage, not forgery: the files are part of the package.
_DIGEST_BYTES = 64
_ANEW = "benchmarks/pretrain_cost_model.py and benchmarks/pretrain_on_phones.py make such models anew."


# Attribute of a booster: type of kernels -> first iteration of its trees and the one after its last, as JSON.
TYPES = "types"
# Attribute of a booster: the `Winners` that it was trained on, as JSON.
WINNERS = "winners"


@dataclass(frozen=True)
class Winners:
    """The fastest configs of the operators that a model was trained on.

    configs: knobs of each. An operator's space may lack some
    kinds: of targets on which a model's picks among them were measured, and were faster than hand rules' configs
    operators: `operator_of` these operators. The model saw few of others
    """

    configs: tuple[Mapping[str, Any], ...] = ()
    kinds: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()

    def are_of(self, template: ContractionTemplate, kind: str) -> bool:
        """Return whether the model's pick among these configs is good for an operator on targets of a kind."""
        return kind in self.kinds and operator_of(template.family, template.workload.dtype) in self.operators

    def to_json(self) -> str:
        """Return a text for `from_json`. Knobs are named once."""
        knobs = list(dict.fromkeys(name for config in self.configs for name in config))
        rows = [[config.get(name) for name in knobs] for config in self.configs]
        names = {"kinds": sorted(self.kinds), "operators": sorted(self.operators)}
        return json.dumps({**names, "knobs": knobs, "configs": rows})

    @classmethod
    def from_json(cls, text: str) -> Winners:
        """Return the winners that `to_json` wrote."""
        data = json.loads(text)
        configs = (zip(data["knobs"], row, strict=True) for row in data["configs"])
        return cls(
            tuple({name: value for name, value in config if value is not None} for config in configs),
            frozenset(data["kinds"]),
            frozenset(data["operators"]),
        )


def operator_of(family: str, dtype: str) -> str:
    """Return the name of all operators of a family and a type, such as "conv2d float32"."""
    return f"{family} {dtype}"


@dataclass(frozen=True)
class Trees:
    """Gradient-boosted trees (XGBoost) over named features, which correct an expected score."""

    booster: Any
    columns: tuple[str, ...]

    def __call__(self, rows: np.ndarray, columns: Sequence[str], expected: np.ndarray) -> np.ndarray:
        """Return corrected scores, -log(seconds) up to a constant, of configs with these features."""
        import xgboost

        data = xgboost.DMatrix(aligned(rows, columns, self.columns), base_margin=expected, nthread=1)
        return np.asarray(self.booster.predict(data))


class PretrainedModel(Trees):
    """Trees over the features of `TaskFeatures`, stored in a file.

    Trees of all types of kernels, and of one type each if the model has such. Both corrections are averaged. Kernels of
    a type without its own trees have the correction of all types.
    """

    @functools.cached_property
    def winners(self) -> Winners:
        """The fastest configs of its training. Empty if the model does not have them."""
        text = self.booster.attr(WINNERS)
        return Winners() if text is None else Winners.from_json(text)

    def __call__(self, rows: np.ndarray, columns: Sequence[str], expected: np.ndarray) -> np.ndarray:
        """Return the corrected scores. See `Trees`."""
        types = json.loads(self.booster.attr(TYPES) or "{}")
        if not types:
            return super().__call__(rows, columns, expected)
        import xgboost

        data = xgboost.DMatrix(aligned(rows, columns, self.columns), base_margin=expected, nthread=1)
        scores = np.asarray(self.booster.predict(data, iteration_range=(0, min(first for first, _ in types.values()))))
        kinds = kernel_types(rows, columns)
        for kind in sorted({*kinds.tolist()} & {*map(int, types)}):
            own = np.asarray(self.booster.predict(data, iteration_range=tuple(types[str(kind)])))
            scores = np.where(kinds == kind, (scores + own) / 2, scores)
        return scores

    @classmethod
    def load(cls, path: Path) -> PretrainedModel:
        """Return the model in a file.

        RecordError if the file is damaged, or the model was trained on features that this version lacks.
        """
        with refused(RecordError, f"{path}: no cost model", hint=_ANEW):
            data = unzipped(read_file(path))
            content, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
            # XGBoost aborts the process on some damaged files.
            if digest != digest_of(content):
                raise ValueError("damaged: its SHA-256 is not that of what was saved")
        import xgboost

        booster = xgboost.Booster({"nthread": 1})
        booster.load_model(bytearray(content))
        columns = tuple(booster.feature_names or ())
        unknown = sorted({*columns} - known_columns())
        if unknown or not columns:
            raise RecordError(
                f"{path} was trained on features that this version does not have:"
                f" {', '.join(unknown) or 'unnamed ones'}",
                hint=_ANEW,
            )
        booster.feature_names = None
        return cls(booster, columns)


class ShippedModel:
    """The pretrained model in a file, read on first use.

    Importing XGBoost takes a second, and the first candidates are built without it.

    A model that does not fit this version is logged and not used. Thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def __call__(self, rows: np.ndarray, columns: Sequence[str], expected: np.ndarray) -> np.ndarray:
        """Return the corrected scores. See `Trees`."""
        model = self.read()
        return expected if model is None else model(rows, columns, expected)

    def read(self) -> PretrainedModel | None:
        """Return the model. None if it does not fit this version."""
        with self._lock:
            return self._model

    @functools.cached_property
    def _model(self) -> PretrainedModel | None:
        try:
            return PretrainedModel.load(self.path)
        except RecordError as error:
            logger.warning("configs are chosen without a pretrained cost model: %s", error)
            return None


def pretrained_for(target: Target) -> ShippedModel | None:
    """Return the shipped model of the target's device, or of the device of its architecture that its backend trusts.

    It is of the target's kind, or of the kind that it learns from. None if there is no such model. Other devices of a
    family have none: Adreno 660's model and one of Adreno 740 rank the other's kernels no better than the estimate, and
    their first picks take longer (docs/evidence/validation.md).
    """
    spec = target.spec
    alike = spec.nearest if target.backend.trusts_nearest else None
    names = filter(None, (spec.name, alike))
    kinds = (target.kind, target.backend.learns_from)
    paths = (model_path(kind, name) for name in names for kind in kinds if kind)
    path = next(filter(Path.is_file, paths), None)
    return None if path is None else _shipped(path)


@functools.cache
def _shipped(path: Path) -> ShippedModel:
    return ShippedModel(path)


def model_path(kind: str, name: str) -> Path:
    """Return the path of the pretrained model of a device, for targets of a kind."""
    return _FOLDER / f"{kind}_{name}.ubj.gz"
