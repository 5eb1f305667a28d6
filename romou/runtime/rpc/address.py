"""Addresses of served devices: one RPC server, or a tracker of several."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from romou.base.errors import UsageError
from romou.runtime.rpc import keys

_TRACKER = "tracker://"


@dataclass(frozen=True, kw_only=True)
class Address:
    """host:port/key of an RPC server, or tracker://host:port/key of a tracker with any number of servers under a key.

    host:port/@FILE reads the key from a file, host:port from ROMOU_RPC_KEY, because other users can read a command
    line. The text of an address contains no key.

    A prefix marks trackers. A busy server does not answer, so a connection cannot distinguish the two.
    """

    host: str
    port: int
    key: str = field(repr=False)
    is_tracker: bool = False

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return an address from its text. Raise UsageError for anything else."""
        key = r"@(?P<file>.+)|(?P<key>[^\s/:@][^\s/:]*)"
        pattern = rf"(?P<tracker>{_TRACKER})?(?P<host>\[[^\]\s]+\]|[^/\s:]+):(?P<port>\d{{1,5}})(?:/(?:{key}))?"
        parts = re.fullmatch(pattern, text) if isinstance(text, str) else None
        key_text = (
            None
            if parts is None
            else parts["key"]
            or (keys.from_file(Path(parts["file"]).expanduser()) if parts["file"] else keys.from_environment())
        )
        if parts is None or key_text is None or not 0 < int(parts["port"]) < 65536:
            raise UsageError(
                f"{text!r} names no RPC server; write host:port/key, for example 192.168.1.20:9090/phone",
                hint=(
                    f"For a tracker write {_TRACKER}host:port/key. A key that others must not see: host:port/@FILE, or"
                    f" {keys.VARIABLE} and host:port."
                ),
                address=text,
            )
        is_tracker = parts["tracker"] is not None
        return cls(host=parts["host"].strip("[]"), port=int(parts["port"]), key=key_text, is_tracker=is_tracker)

    @property
    def where(self) -> str:
        """The address without its key, host:port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{_TRACKER if self.is_tracker else ''}{self.where}"
