"""A program's effects as the reference has them, compared while a core runs it.

It knows no simulator: a bench tells it what starts, ends and is written, and shows it the memories.
Every memory has one unit that writes it, and units end their instructions in order. So what an
instruction has written is, at its end, what the reference has after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..hw.core.scratchpad import rows
from ..isa.footprint import dram_rows, gemm_entries, vector_entries
from ..isa.insn import Gemm, Insn, Load, Store, Vector
from ..isa.opcodes import Unit
from ..isa.program import Program
from ..isa.reference import State, execute
from ..runtime.result import SimResult
from .axi import Transfer
from .divergence import diverged
from .words import differing_element, entry_words

#: Shows a row of a scratchpad as the core holds it.
ReadRow = Callable[[str, int], int]


@dataclass
class _Effect:
    """What an instruction leaves: rows of a scratchpad, or bytes of DRAM, in the order in which
    they are written.
    """

    memory: str = ""
    rows: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    addresses: np.ndarray | None = None
    data: np.ndarray | None = None
    done: int = 0


class ProgramCheck:
    """Compares a core with the reference and, where ``timing`` is given, with the SimPy model.

    Parameters
    ----------
    program : Program
        What the core runs.
    dram : uint8 array
        DRAM before the run; it is left as it is.
    timing : SimResult, optional
        The starts and ends that the core must have.

    Attributes
    ----------
    starts, ends : list of int
        Cycle of every instruction's start and end, -1 where it has not happened.
    counters : dict
        Cycles by unit and cause, once the core has stopped and they have been read.
    state : State
        The reference, as far as it has run.
    """

    def __init__(self, program: Program, dram: np.ndarray, timing: SimResult | None = None) -> None:
        self.program, self.timing = program, timing
        self.state = State(program.params, dram.copy())
        self.starts = [-1] * len(program.insns)
        self.ends = [-1] * len(program.insns)
        self.counters: dict[str, dict[str, int]] = {}
        self.ended_count = 0
        by_unit: list[list[int]] = [[] for _ in Unit]
        for index, insn in enumerate(program.insns):
            by_unit[insn.unit].append(index)
        self._to_start = [deque(indices) for indices in by_unit]
        self._to_end = [deque(indices) for indices in by_unit]
        self._to_write = deque(by_unit[Unit.STORE])
        self._executed = 0
        self._effects: dict[int, _Effect] = {}

    # ---- what a core does ----

    def start(self, unit: Unit, cycle: int) -> int:
        """A unit has started its next instruction; returns its index."""
        return self._moment("start", self._to_start[unit], self.starts, unit, cycle)

    def end(self, unit: Unit, cycle: int) -> int:
        """A unit has ended its next instruction; returns its index. Its effects can be compared a
        cycle later, by :meth:`compare`.
        """
        index = self._moment("end", self._to_end[unit], self.ends, unit, cycle)
        if self.starts[index] < 0:
            raise diverged(self.program, index, "end", "a start before", "none", cycle)
        self.ended_count += 1
        return index

    def _moment(
        self, what: str, waiting: deque[int], moments: list[int], unit: Unit, cycle: int
    ) -> int:
        name = unit.name.lower()
        if not waiting:
            raise diverged(
                self.program, None, f"{what} of {name}", "no more instructions", "one", cycle
            )
        index = waiting.popleft()
        moments[index] = cycle
        if self.timing is not None:
            expected = (self.timing.starts if what == "start" else self.timing.ends)[index]
            if expected != cycle:
                raise diverged(self.program, index, f"{what} cycle", expected, cycle, cycle)
        return index

    def due(self) -> int | None:
        """The first cycle in which something should start or end that has not; None at the end.
        Only with ``timing``.
        """
        assert self.timing is not None
        waiting = ((self._to_start, self.timing.starts), (self._to_end, self.timing.ends))
        moments = [times[indices[0]] for queues, times in waiting for indices in queues if indices]
        return min((moment for moment in moments if moment >= 0), default=None)

    def compare(self, index: int, read: ReadRow | None, cycle: int) -> None:
        """What an instruction that has ended left in its scratchpad, unless that cannot be read, or
        in DRAM.
        """
        effect = self._effect(index)
        del self._effects[index]
        for row, word in zip(effect.rows, effect.words, strict=True):
            got = word if read is None else read(effect.memory, row)
            if got != word:
                kind = self.state.memory(effect.memory).dtype
                element, wanted, found = differing_element(word, got, kind)
                what = f"{effect.memory}[{row}], element {element}"
                raise diverged(self.program, index, what, wanted, found, cycle, row)
        if effect.addresses is not None and effect.done < effect.addresses.size:
            address = int(effect.addresses[effect.done])
            raise diverged(
                self.program, index, f"DRAM {address:#x}", "a byte written", "none", cycle, address
            )

    def write(self, beat: Transfer, cycle: int) -> None:
        """A beat of write data: its bytes must be the next of the stores, in their order."""
        bus = self.program.params.bus_bytes
        for lane in range(bus):
            if beat.strobes >> lane & 1:
                self._byte(beat.address + lane, beat.data >> 8 * lane & 255, cycle)

    def _byte(self, address: int, value: int, cycle: int) -> None:
        if not self._to_write:
            raise diverged(
                self.program, None, f"DRAM {address:#x}", "no more writes", hex(value), cycle,
                address,
            )  # fmt: skip
        index = self._to_write[0]
        effect = self._effect(index)
        assert effect.addresses is not None and effect.data is not None
        wanted = int(effect.addresses[effect.done])
        if address != wanted:
            raise diverged(
                self.program, index, "address of a written byte", hex(wanted), hex(address), cycle,
                wanted,
            )  # fmt: skip
        byte = int(effect.data[effect.done])
        if value != byte:
            raise diverged(
                self.program, index, f"DRAM {address:#x}", hex(byte), hex(value), cycle, address
            )
        effect.done += 1
        if effect.done == effect.addresses.size:
            self._to_write.popleft()

    def late(self, cycle: int) -> None:
        """Raise Diverged for the instruction that should have started, or ended, first of those
        that have not; without cycles, for one that has started. After the core has stopped, or has
        been given up.
        """
        found = []
        for rank, (what, moments) in enumerate((("end", self.ends), ("start", self.starts))):
            due = getattr(self.timing, f"{what}s") if self.timing else [rank] * len(moments)
            missing = (i for i, moment in enumerate(moments) if moment < 0 <= due[i])
            found += [(due[i], i, what) for i in missing if what == "start" or self.starts[i] >= 0]
        if found:
            moment, index, what = min(found)
            expected = f"in cycle {moment:,}" if self.timing else "some time"
            raise diverged(self.program, index, what, expected, "never", cycle)

    # ---- what it should do ----

    def finish(self) -> np.ndarray:
        """DRAM after the whole program, as the reference leaves it."""
        if self.program.insns:
            self._effect_until(len(self.program.insns))
        return self.state.dram

    def _effect(self, index: int) -> _Effect:
        self._effect_until(index + 1)
        return self._effects[index]

    def _effect_until(self, count: int) -> None:
        """Run the reference, keeping the effects of instructions that the core is still to end."""
        while self._executed < count:
            insn = self.program.insns[self._executed]
            written = _written(insn, self.state)
            execute(insn, self.state)
            self._effects[self._executed] = self._left(insn, written)
            self._executed += 1

    def _left(self, insn: Insn, entries: np.ndarray | None) -> _Effect:
        params = self.program.params
        if entries is None:
            return _Effect()
        if isinstance(insn, Store):
            data = self.state.out[insn.base : insn.base + insn.entries]
            return _Effect(addresses=entries, data=data.view(np.uint8).reshape(-1).copy())
        match insn:
            case Load():
                memory = insn.memory
            case Vector():
                memory = insn.dst
            case _:
                memory = "acc"
        passes = rows(memory, params)[0] // params.depth(memory)
        places = [passes * int(entry) + p for entry in entries for p in range(passes)]
        contents = self.state.scratchpads()[memory][entries]
        return _Effect(memory, places, entry_words(contents, memory, params))


def _written(insn: Insn, state: State) -> np.ndarray | None:
    """Entries of the scratchpad that an instruction writes, each once; of a store byte addresses in
    the order of time.
    """
    params = state.params
    match insn:
        case Load():
            return np.arange(insn.base, insn.base + insn.entries)
        case Gemm():
            return _once(gemm_entries(insn, state.micro_ops(insn))["acc"])
        case Vector():
            entries = vector_entries(insn)["dst"]
            return _once(entries[entries >= 0])  # those below are of results that are not written
        case Store():
            row_bytes = insn.x_size * params.entry_bytes("out")
            return (dram_rows(insn).reshape(-1, 1) + np.arange(row_bytes)).reshape(-1)
        case _:
            return None


def _once(entries: np.ndarray) -> np.ndarray:
    """The entries in ascending order, each once. NumPy's ``unique`` imports its masked arrays
    first, which takes longer in the simulator's process than a small network.
    """
    return np.flatnonzero(np.bincount(entries.reshape(-1)))
