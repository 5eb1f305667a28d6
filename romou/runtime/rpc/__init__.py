"""Devices behind TVM RPC servers: addresses, connections with their check of versions, the tracker, and `romou serve`."""  # noqa: E501

from romou.runtime.rpc.address import Address
from romou.runtime.rpc.connection import Connection, connect

__all__ = ["Address", "Connection", "connect"]
