"""The memory model of ``docs/timing.md`` behind the core's AXI port, for cocotb: the one that the
SimPy model computes with, so that cycles can be compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from .axi import Transfer
from .bench import reader

OKAY, SLVERR = 0, 2


@dataclass
class Beat:
    """One beat of read data on its way to the core; a bench may change it (``on_read``), or drop
    it, so that it never comes.
    """

    address: int
    data: int
    resp: int
    drop: bool = False


@dataclass
class _Burst:
    address: int
    beats: int
    id: int
    ready: int


class DramModel:
    """Answers the core's bursts in order, in the cycles of the timing contract.

    Call :meth:`step` at every rising edge, with what was transferred in the cycle that ends.

    Parameters
    ----------
    dut : the core
    dram : uint8 array
        The memory, changed in place.
    params : HwParams
        The core's configuration.
    memory : MemoryParams
        Latencies and bandwidth.
    prefix : str
        What the names of the ports begin with.

    Attributes
    ----------
    on_read : callable or None
        Given each :class:`Beat` when it is first offered; may change its data or response.
    on_response : callable or None
        Given the response of a write burst when it is first offered; returns the one to give.
    delay_cycles : int
        Added to the latency of bursts that are accepted from now on.
    """

    def __init__(
        self, dut: Any, dram: np.ndarray, params: HwParams, memory: MemoryParams,
        prefix: str = "axi_",
    ) -> None:  # fmt: skip
        memory.check_bus(params)
        self.dram, self.memory, self._bytes = dram, memory, params.bus_bytes
        self.on_read: Any = None
        self.on_response: Any = None
        self.delay_cycles = 0
        self._dut, self._prefix = dut, prefix
        self._rready = reader(getattr(dut, f"{prefix}rready"))
        self._shown: dict[str, int] = {}
        self._handles: dict[str, Any] = {}
        self._reads: deque[_Burst] = deque()
        #: Bursts whose data are still to come: whether an address was beyond the memory.
        self._incoming: deque[int] = deque()
        #: Responses to give: the cycle from which on, and the code.
        self._answers: deque[tuple[int, int]] = deque()
        self._read_beat = self._writes = 0
        self._next_read = self._next_write = self._next_answer = 0
        self._offered: Beat | None = None
        self._set("bid", 0)
        self._drive(0)

    def step(self, now: int, transfers: Iterable[Transfer]) -> None:
        """The transfers of cycle ``now`` happen; the inputs of the core for the next are set."""
        if self._shown["rvalid"] and self._rready():
            self._next_read = now + self.memory.cycles_per_beat
            self._next_beat()
        if self._shown["bvalid"]:  # the core always takes responses
            self._answers.popleft()
            self._next_answer = now + 1
            self._writes -= 1
        for transfer in transfers:
            self._take(now, transfer)
        self._drive(now + 1)

    def _next_beat(self) -> None:
        self._offered = None
        self._read_beat += 1
        if self._read_beat == self._reads[0].beats:
            self._reads.popleft()
            self._read_beat = 0

    def _take(self, now: int, transfer: Transfer) -> None:
        memory = self.memory
        match transfer.channel:
            case "ar":
                ready = now + memory.read_latency_cycles + self.delay_cycles
                burst = _Burst(transfer.address, transfer.beats, transfer.id, ready)
                self._reads.append(burst)
            case "aw":
                self._incoming.append(OKAY)
                self._writes += 1
            case "w":
                self._next_write = now + memory.cycles_per_beat
                if not self._write(transfer):
                    self._incoming[0] = SLVERR
                if transfer.last:
                    ready = now + memory.write_latency_cycles + self.delay_cycles
                    self._answers.append((ready, self._incoming.popleft()))

    def _write(self, beat: Transfer) -> bool:
        """Whether the beat lies within the memory, which then holds its bytes."""
        if beat.address + self._bytes > self.dram.size:
            return False
        data = np.frombuffer(beat.data.to_bytes(self._bytes, "little"), np.uint8)
        target = self.dram[beat.address : beat.address + self._bytes]
        if beat.strobes == (1 << self._bytes) - 1:
            target[:] = data
        else:
            lanes = [lane for lane in range(self._bytes) if beat.strobes >> lane & 1]
            target[lanes] = data[lanes]
        return True

    def _drive(self, now: int) -> None:
        """Inputs of the core for cycle ``now``."""
        reads, memory = self._reads, self.memory
        data = bool(reads) and now >= reads[0].ready and now >= self._next_read
        if data:
            data = self._offer(reads[0])
        answer = bool(self._answers) and now >= self._answers[0][0] and now >= self._next_answer
        if answer:
            resp = self._answers[0][1]
            if self.on_response is not None and not self._shown["bvalid"]:
                resp = self.on_response(resp)
            self._set("bresp", resp)
        self._set("arready", len(reads) < memory.outstanding)
        self._set("awready", self._writes < memory.outstanding)
        self._set("wready", now >= self._next_write)
        self._set("rvalid", data)
        self._set("bvalid", answer)

    def _offer(self, burst: _Burst) -> bool:
        """Show the next beat of a burst, unless it is dropped; whether there is one. A beat that
        waits keeps what it was offered with.
        """
        if self._offered is not None:
            return True
        address = burst.address + self._read_beat * self._bytes
        inside = address + self._bytes <= self.dram.size
        raw = self.dram[address : address + self._bytes].tobytes() if inside else b""
        beat = Beat(address, int.from_bytes(raw, "little"), OKAY if inside else SLVERR)
        if self.on_read is not None:
            self.on_read(beat)
        if beat.drop:
            self._next_beat()
            return False
        self._offered = beat
        self._set("rdata", beat.data)
        self._set("rresp", beat.resp)
        self._set("rid", burst.id)
        self._set("rlast", self._read_beat + 1 == burst.beats)
        return True

    def _set(self, name: str, value: int) -> None:
        """Drive a signal, if it is not driven so already: each costs microseconds."""
        if self._shown.get(name) != value:
            if name not in self._handles:
                self._handles[name] = getattr(self._dut, self._prefix + name)
            self._shown[name] = int(value)
            self._handles[name].value = int(value)
