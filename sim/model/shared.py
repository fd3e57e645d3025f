"""What the modules of a core share while it runs a program."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ...isa.encoding import HEADER
from ...isa.insn_table import InsnTable
from ...isa.memory import MemoryParams
from ...isa.opcodes import Unit
from .dma import ReadArbiter, WriteChannel
from .queue import Environment
from .sdram import SdramArbiter
from .token import TokenBank


class Shared:
    """The instructions, the memory and what connects the modules.

    Attributes
    ----------
    unit_of : the unit of each instruction
    indices : the instructions of each unit, int64 [their number]
    arbiter, writes : the memory's side: of reads, and of writes
    """

    def __init__(self, table: InsnTable, memory: MemoryParams, program_addr: int = 0):
        self.table, self.params, self.memory = table, table.params, memory
        self.program_addr = program_addr
        self.env = Environment()
        self.tokens = TokenBank(self.env)
        if memory.part:
            self.arbiter = self.writes = SdramArbiter(self.env, memory)
        else:
            self.arbiter, self.writes = ReadArbiter(self.env, memory), WriteChannel(memory)
        self.unit_of: list[Unit] = table.units.tolist()
        self.indices = {unit: np.flatnonzero(table.units == unit) for unit in Unit}

    def masks(self, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
        """For each instruction of a unit, the masks of the units that it takes a token from, and of
        those that it gives one to: int64 [their number] each."""
        names = [field.name for field in HEADER]
        rows = self.table.rows[self.indices[unit]]
        pops, pushes = (rows[:, names.index(name)] for name in ("pop", "push"))
        return pops, pushes

    @cached_property
    def givers(self) -> np.ndarray:
        """For each instruction and unit, the instruction of that unit whose token it takes: -1
        where it takes none, the number of instructions where the token is never given. int64
        [instructions, units].

        Units run in order and tokens have no names: the n-th pop takes the token of the n-th push.
        """
        count = len(self.unit_of)
        givers = np.full((count, len(Unit)), -1, np.int64)
        masks = {unit: self.masks(unit) for unit in Unit}
        for giver in Unit:
            for taker in Unit:
                gives = self.indices[giver][masks[giver][1] >> taker & 1 > 0]
                takes = self.indices[taker][masks[taker][0] >> giver & 1 > 0]
                given = min(gives.size, takes.size)
                givers[takes[:given], giver] = gives[:given]
                givers[takes[given:], giver] = count
        return givers
