"""Graph level: which layout each tensor lives in, which operators share a kernel, which tensors lie in images, which are parts of others."""

from romou.layout.fuse import fuse_operators
from romou.layout.pack_channels import pack_channels
from romou.layout.place_images import place_images
from romou.layout.share_buffers import share_buffers

__all__ = ["fuse_operators", "pack_channels", "place_images", "share_buffers"]
