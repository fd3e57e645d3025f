"""Assertions that every bench of a stream makes, for Amaranth's simulator and for cocotb alike."""

from __future__ import annotations


class StreamMonitor:
    """Watch one stream, a cycle at a time: once valid, it stays so with a stable payload until the
    transfer. Transferred payloads are collected with their cycles.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.cycle = 0
        self.transfers: list[tuple[int, int]] = []
        self._pending: int | None = None

    def sample(self, valid: int, ready: int, payload: int) -> None:
        """Signals of the stream just before a clock edge."""
        if self._pending is not None:
            assert valid, f"{self.name}: valid fell without a transfer in cycle {self.cycle}"
            assert payload == self._pending, (
                f"{self.name}: payload changed from {self._pending:#x} to {payload:#x} while it "
                f"waited, cycle {self.cycle}"
            )
        self._pending = payload if valid and not ready else None
        if valid and ready:
            self.transfers.append((self.cycle, payload))
        self.cycle += 1

    @property
    def payloads(self) -> list[int]:
        """What was transferred, in order."""
        return [payload for _, payload in self.transfers]
