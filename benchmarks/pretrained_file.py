"""Writes pretrained cost models as the files that `romou.compiler.operators.costs.pretrained` reads."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xgboost

from romou.base.files import digest_of, replacing
from romou.compiler.operators.costs.pretrained import TYPES, WINNERS, PretrainedModel, Trees, Winners

# XGBoost's statistics of a tree's nodes, which no prediction reads.
_STATISTICS = ("base_weights", "loss_changes", "sum_hessian")


def of_types(shared: Trees, own: Mapping[int, Trees]) -> PretrainedModel:
    """Return a model of trees for all types, and of trees for some types.

    own: type of kernels, see `kernel_types` -> trees with the columns of `shared`
    """
    model = _as_json(shared.booster)
    whole = model["learner"]["gradient_booster"]["model"]
    types = {}
    for kind, trees in own.items():
        added = _as_json(trees.booster)["learner"]["gradient_booster"]["model"]
        first, count = len(whole["iteration_indptr"]) - 1, len(whole["trees"])
        whole["trees"] += [{**tree, "id": count + number} for number, tree in enumerate(added["trees"])]
        whole["tree_info"] += added["tree_info"]
        whole["iteration_indptr"] += [count + end for end in added["iteration_indptr"][1:]]
        types[str(kind)] = first, len(whole["iteration_indptr"]) - 1
    whole["gbtree_model_param"]["num_trees"] = str(len(whole["trees"]))
    joined = _from_json(model)
    joined.set_attr(**{TYPES: json.dumps(types)})
    return PretrainedModel(joined, shared.columns)


def with_winners(model: Trees, winners: Winners) -> PretrainedModel:
    """Return a model with the fastest configs of its training."""
    model.booster.set_attr(**{WINNERS: winners.to_json()})
    return PretrainedModel(model.booster, model.columns)


def save(model: Trees, path: Path) -> None:
    """Write a model to a file, without the statistics of the training, which are half of its size."""
    bare = _as_json(model.booster)
    for tree in bare["learner"]["gradient_booster"]["model"]["trees"]:
        tree.update((name, [0.0] * len(tree[name])) for name in _STATISTICS)
    named = _from_json(bare)
    named.feature_names = list(model.columns)
    content = bytes(named.save_raw("ubj"))
    # Without a time stamp, equal models give equal files.
    with replacing(path) as partial:
        partial.write_bytes(b"".join(gzip.compress(part, mtime=0) for part in (content, digest_of(content))))


def _as_json(booster: Any) -> Any:
    return json.loads(bytes(booster.save_raw("json")))


def _from_json(model: Any) -> Any:
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(json.dumps(model).encode()))
    return booster
