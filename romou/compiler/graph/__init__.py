"""Passes over the Relax graph: layouts, fusion, images, and buffer slices."""

from romou.compiler.graph.bound_indices import bound_indices
from romou.compiler.graph.check_families import check_families
from romou.compiler.graph.drop_empty import drop_empty
from romou.compiler.graph.join_chains import Chain, ChainGroup, find_chains, join_chains, tasks_of
from romou.compiler.graph.pack_channels import pack_channels
from romou.compiler.graph.place_images import place_images
from romou.compiler.graph.share_buffers import share_buffers
from romou.compiler.graph.split_weights import split_weights

__all__ = [
    "Chain",
    "ChainGroup",
    "bound_indices",
    "check_families",
    "drop_empty",
    "find_chains",
    "join_chains",
    "pack_channels",
    "place_images",
    "share_buffers",
    "split_weights",
    "tasks_of",
]
