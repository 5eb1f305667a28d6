"""Devices behind TVM RPC servers: addresses, connections with their check of versions, the tracker, and `romou serve`."""

from romou.rpc.address import Address
from romou.rpc.connection import Connection, connect

__all__ = ["Address", "Connection", "connect"]
