"""Whether other programs use the processor that kernels are timed on."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path

logger = logging.getLogger("romou")

# Above these, times scatter by more than a search can gain: runnable processes for each core, and the share of the
# processor's time that the hypervisor gives to other machines.
_MOST_LOAD, _MOST_STEAL = 0.5, 0.05
_STAT = Path("/proc/stat")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessorUse:
    """The use of this machine's processor at one moment.

    load: runnable processes for each core, the mean of a minute. 0 if it is unknown.
    stolen, total: ticks of all cores since the start of the machine: not given by the hypervisor, and all of them.
    """

    load: float
    stolen: int = 0
    total: int = 0

    @classmethod
    def now(cls) -> ProcessorUse:
        """Return the use now, of what this system tells."""
        try:
            load = os.getloadavg()[0] / (os.cpu_count() or 1)
        except OSError:
            load = 0.0
        try:
            # cpu user nice system idle iowait irq softirq steal guest ...; guests' time is part of the user's.
            ticks = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            ticks = []
        return cls(load=load, stolen=ticks[7] if len(ticks) == 8 else 0, total=sum(ticks))

    def complaint(self, later: ProcessorUse) -> str:
        """Return what other programs use, between this moment and a later one, and what it does. "" if it is little."""
        passed = later.total - self.total
        steal = (later.stolen - self.stolen) / passed if passed > 0 else 0.0
        parts = []
        if self.load > _MOST_LOAD:
            parts.append(f"{self.load:.1f} other processes want each core")
        if steal > _MOST_STEAL:
            parts.append(f"other virtual machines take {steal:.0%} of its time")
        if not parts:
            return ""
        return (
            f"this machine's processor, which is the device, is busy: {' and '.join(parts)}. Times scatter, the search"
            " takes longer, and small differences between kernels are not found"
        )


def warn_if_busy(before: ProcessorUse) -> None:
    """Log a warning if other programs use the processor. before: its use when this program began to work."""
    text = before.complaint(ProcessorUse.now())
    if text:
        logger.warning("%s", text)
