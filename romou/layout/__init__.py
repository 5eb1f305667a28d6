"""Graph level: which layout each tensor lives in, which operators share a kernel, which tensors lie in images, which are slices of others."""

from romou.layout.bound_indices import bound_indices
from romou.layout.drop_empty import drop_empty
from romou.layout.fuse import fuse_operators
from romou.layout.join_pairs import Pair, find_pairs, join_pairs, tasks_of
from romou.layout.pack_channels import pack_channels
from romou.layout.place_images import place_images
from romou.layout.share_buffers import share_buffers
from romou.layout.split_weights import split_weights

__all__ = [
    "Pair",
    "bound_indices",
    "drop_empty",
    "find_pairs",
    "fuse_operators",
    "join_pairs",
    "pack_channels",
    "place_images",
    "share_buffers",
    "split_weights",
    "tasks_of",
]
