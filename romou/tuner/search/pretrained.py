"""Pretrained cost models: trees that correct the estimate on a device, trained on spaces that were recorded there by
benchmarks/pretrain_cost_model.py.

They were trained on sums of products in OpenCL, and hold on the device itself, without tensor cores, for each kind of
backend that names OpenCL's as its own.
"""

from __future__ import annotations

import functools
import gzip
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from romou.base.errors import RecordError
from romou.devices.targets import Target
from romou.tuner.search.cost_model import Trees, train_on
from romou.tuner.search.features import TaskFeatures, known_columns
from romou.tuner.search.simulation import SimulatedTask
from romou.tuner.search.transfer import TransferData

logger = logging.getLogger("romou")

_FOLDER = Path(__file__).parent / "pretrained_models"
_ANEW = "python benchmarks/pretrain_cost_model.py makes it anew."


class PretrainedModel(Trees):
    """Trees over the features of `TaskFeatures`, kept in a file."""

    @classmethod
    def of_recordings(cls, tasks: Sequence[SimulatedTask], target: Target) -> PretrainedModel:
        """Return a model trained on all recorded configs of the tasks. `target` names their device; RecordError where
        too few configs were recorded.
        """
        data = TransferData()
        for task in tasks:
            recorded, configs = task.recorded, list(SimulatedTask.of_recording(task.recorded).space(target))
            space, features = recorded.space(), TaskFeatures(task.template, task.limits(target), target.spec)
            data.add(features, configs, [recorded.configs[space.index_of(c)].time_s for c in configs])
        trees = train_on(data)
        if trees is None:
            raise RecordError(
                f"{len(tasks)} recordings hold too few configs to train a cost model on",
                hint="benchmarks/record_spaces.py records spaces.",
            )
        return cls(trees.booster, trees.columns)

    def save(self, path: Path) -> None:
        """Write a file that `load` reads."""
        named = self.booster.copy()
        named.feature_names = list(self.columns)
        # Without the time, equal models are equal files.
        path.write_bytes(gzip.compress(bytes(named.save_raw("ubj")), mtime=0))

    @classmethod
    def load(cls, path: Path) -> PretrainedModel:
        """Return the model in a file that `save` wrote; RecordError where it was trained on features that this version
        does not have.
        """
        import xgboost

        booster = xgboost.Booster({"nthread": 1})
        booster.load_model(bytearray(gzip.decompress(path.read_bytes())))
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
    """The pretrained model in a file, read when it is first asked: importing XGBoost takes a second, and the first
    candidates are built without it.

    One that does not fit this version changes nothing, and that is logged: a search goes on without it. May be asked by
    several threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def __call__(self, rows: np.ndarray, columns: Sequence[str], expected: np.ndarray) -> np.ndarray:
        """See `Trees`."""
        model = self.read()
        return expected if model is None else model(rows, columns, expected)

    def read(self) -> PretrainedModel | None:
        """Return the model; None where it does not fit."""
        with self._lock:
            return self._model

    @functools.cached_property
    def _model(self) -> PretrainedModel | None:
        try:
            return PretrainedModel.load(self._path)
        except RecordError as error:
            logger.warning("the search goes on without a pretrained cost model: %s", error)
            return None


def pretrained_for(target: Target) -> ShippedModel | None:
    """Return the model that ships for the target's device, of its own kind or of the one that this kind learns from;
    None where there is none.
    """
    path = next(
        (
            path
            for path in map(functools.partial(file_of, target), (target.kind, target.backend.learns_from))
            if path.is_file()
        ),
        None,
    )
    return None if path is None else ShippedModel(path)


def file_of(target: Target, kind: str | None = None) -> Path:
    """Return where the pretrained model for the target's device lies, for its own kind or another one."""
    return _FOLDER / f"{kind or target.kind}_{target.spec.name}.ubj.gz"
