"""By how much the estimate is wrong on a device, learnt out of spaces that were recorded on it: files in `lessons/`, made by scripts/pretrain_cost_model.py.

They hold for sums of products in OpenCL on the device itself, of which they were recorded.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from romou.core.errors import RecordError
from romou.search.cost_model import TransferData, added, learn
from romou.search.features import FEATURES, TaskFeatures
from romou.search.simulation import SimulatedTask
from romou.target import Target

_FOLDER = Path(__file__).parent / "pretrained_models"


class PretrainedModel:
    """Trees over the features of `TaskFeatures`: what is expected of configs -> the same, corrected."""

    def __init__(self, trees: Any) -> None:
        self._trees = trees

    def __call__(self, rows: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Corrected scores, -log(seconds) up to a constant, of configs with these features and expected scores."""
        return added(self._trees, rows, expected)

    @classmethod
    def of_recordings(cls, tasks: Sequence[SimulatedTask], target: Target) -> PretrainedModel:
        """What all recorded configs of the tasks teach. `target` names their device."""
        lessons = TransferData()
        for task in tasks:
            recorded, configs = task.recorded, list(SimulatedTask.of_recording(task.recorded).space(target))
            space, features = recorded.space(), TaskFeatures(task.template, target.limits, target.spec)
            lessons.add(features(configs), [recorded.configs[space.index_of(c)].time_s for c in configs], features.expected(configs))
        return cls(learn(lessons))

    def save(self, path: Path) -> None:
        """Write a file that `load` reads."""
        named = self._trees.copy()
        named.feature_names = list(FEATURES)
        # Without the time, equal lessons are equal files.
        path.write_bytes(gzip.compress(bytes(named.save_raw("ubj")), mtime=0))

    @classmethod
    def load(cls, path: Path) -> PretrainedModel:
        """Inverse of `save`.

        Raises
        ------
        RecordError
            The file was made for other features than this version's.
        """
        import xgboost

        trees = xgboost.Booster({"nthread": 1})
        trees.load_model(bytearray(gzip.decompress(path.read_bytes())))
        if tuple(trees.feature_names or ()) != FEATURES:
            raise RecordError(f"{path} was made for other features than this version's", hint="python scripts/pretrain_cost_model.py makes it anew.")
        trees.feature_names = None
        return cls(trees)


def pretrained_for(target: Target) -> PretrainedModel | None:
    """Those that ship for the target's device; None where there are none."""
    path = file_of(target)
    return PretrainedModel.load(path) if path.is_file() else None


def file_of(target: Target) -> Path:
    """Where the model for the target's kind and device lies."""
    return _FOLDER / f"{target.kind}_{target.spec.name}.ubj.gz"
