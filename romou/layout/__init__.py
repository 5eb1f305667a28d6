"""Graph level: which layout each tensor lives in."""

from romou.layout.pack_channels import pack_channels

__all__ = ["pack_channels"]
