"""Graph level: which layout each tensor lives in, and which operators share a kernel."""

from romou.layout.fuse import fuse_operators
from romou.layout.pack_channels import pack_channels

__all__ = ["fuse_operators", "pack_channels"]
