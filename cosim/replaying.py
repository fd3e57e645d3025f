"""A block by itself in the simulator, with what was recorded at its ports: what the two ways of
replaying share (``replay_timed.py`` and ``replay_in_order.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cocotb.triggers import RisingEdge

from .bench import reader, reset
from .recording import Recording
from .traffic import Traffic, masked, read_ports, write_ports

#: What a block reads that the recording does not: bits of no meaning.
_UNKNOWN = 0xA5


class Memories:
    """What read ports show: of memories that the block itself writes what it has written, of others
    what the recording shows.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        tracks = traffic.recording.tracks
        self.ports = read_ports(traffic.recording)
        self._bits = {port: tracks[f"{port}__data"].bits for port in self.ports}
        self._own: dict[str, dict[int, int]] = {
            name.removesuffix("_write"): {} for name in write_ports(traffic.recording)
        }
        #: The last read that nothing in the recording answers, if any: port and address.
        self.unknown: tuple[str, int] | None = None

    def read(self, port: str, address: int, places: Iterable[int]) -> int:
        """The data of an address for the instructions in flight, by their places."""
        own = self._own.get(port.rstrip("0123456789"))
        if own is not None:
            return own.get(address, 0)
        data = self._traffic.observed(port, address, places)
        if data is not None:
            return data
        self.unknown = (port, address)
        bits = self._bits[port]
        return int.from_bytes(bytes([_UNKNOWN] * -(-bits // 8)), "little") & ((1 << bits) - 1)

    def write(self, name: str, value: tuple[int, ...], shape: tuple[int, int]) -> None:
        """The block writes: enable, address and data, on a port of this many parts and bits."""
        enable, address, data = value
        own = self._own[name.removesuffix("_write")]
        kept = own.get(address, 0) & ~masked(enable, -1, *shape)
        own[address] = kept | masked(enable, data, *shape)

    def unknown_text(self) -> str:
        """What it has read that the recording does not show, for messages; empty if nothing."""
        if self.unknown is None:
            return ""
        port, address = self.unknown
        return f" (before, it read {port}[{address}], which the recording does not read there)"


class ReplayedBlock:
    """A block, and the recording that it is driven with.

    Parameters
    ----------
    dut : the block: ports of the recording by their flat names, ``clk`` and ``rst``
    recording : Recording

    Attributes
    ----------
    cycles : int
        Cycles so far.
    """

    def __init__(self, dut: Any, recording: Recording) -> None:
        self.dut, self.recording = dut, recording
        tracks = recording.tracks
        self.cycles = 0
        #: Handles of inputs, readers of outputs, and parts and bits of what write ports write.
        self.inputs = {n: getattr(dut, n) for n, t in tracks.items() if t.direction == "input"}
        self.read = {
            n: reader(getattr(dut, n)) for n, t in tracks.items() if t.direction == "output"
        }
        self.clock = RisingEdge(dut.clk)
        self.writes = {
            name: (tracks[f"{name}__en"].bits, tracks[f"{name}__data"].bits)
            for name in write_ports(recording)
        }

    async def reset(self) -> None:
        """Reset the block, with all inputs 0."""
        await reset(self.dut, *self.inputs)
