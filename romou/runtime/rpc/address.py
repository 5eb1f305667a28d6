"""Where devices are served: one server, or a tracker that knows several."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from romou.base.errors import UsageError
from romou.runtime.rpc import keys

_TRACKER = "tracker://"


@dataclass(frozen=True, kw_only=True)
class Address:
    """host:port/key of an RPC server, or tracker://host:port/key of a tracker with any number of servers under that
    key.

    host:port/@FILE takes the key from a file, host:port alone from ROMOU_RPC_KEY: other users can read a command line.
    As text it shows no key.

    The prefix tells them apart, not the first bytes that they answer: a server that is busy answers nothing.
    """

    host: str
    port: int
    key: str = field(repr=False)
    is_tracker: bool = False

    @classmethod
    def parse(cls, text: str) -> Address:
        """An address from its text; UsageError for anything else."""
        key = r"@(?P<file>.+)|(?P<key>[^\s/:@][^\s/:]*)"
        pattern = rf"(?P<tracker>{_TRACKER})?(?P<host>\[[^\]\s]+\]|[^/\s:]+):(?P<port>\d{{1,5}})(?:/(?:{key}))?"
        parts = re.fullmatch(pattern, text) if isinstance(text, str) else None
        found = (
            None
            if parts is None
            else parts["key"]
            or (keys.from_file(Path(parts["file"]).expanduser()) if parts["file"] else keys.from_environment())
        )
        if parts is None or found is None or not 0 < int(parts["port"]) < 65536:
            raise UsageError(
                f"{text!r} names no RPC server; write host:port/key, for example 192.168.1.20:9090/phone",
                hint=(
                    f"For a tracker write {_TRACKER}host:port/key. A key that others must not see: host:port/@FILE, or"
                    f" {keys.VARIABLE} and host:port."
                ),
                address=text,
            )
        return cls(
            host=parts["host"].strip("[]"), port=int(parts["port"]), key=found, is_tracker=parts["tracker"] is not None
        )

    @property
    def where(self) -> str:
        """host:port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{_TRACKER if self.is_tracker else ''}{self.where}"
