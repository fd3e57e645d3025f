"""What the modules of a core share while it runs a program."""

from __future__ import annotations

import numpy as np

from ...isa.encoding import HEADER
from ...isa.memory import MemoryParams
from ...isa.opcodes import Opcode, Unit
from ...isa.program import Program
from .dma import ReadArbiter
from .queue import Environment
from .token import TokenBank


class Shared:
    """The program, the memory and what connects the modules.

    Attributes
    ----------
    unit_of : the unit of each instruction
    indices : the instructions of each unit, int64 [their number]
    """

    def __init__(self, program: Program, memory: MemoryParams):
        self.program, self.params, self.memory = program, program.params, memory
        self.env = Environment()
        self.tokens = TokenBank(self.env)
        self.arbiter = ReadArbiter(self.env, memory)
        units = np.array([-1, *(opcode.unit for opcode in Opcode)])[program.table[:, 0]]
        self.unit_of: list[Unit] = units.tolist()
        self.indices = {unit: np.flatnonzero(units == unit) for unit in Unit}

    def masks(self, unit: Unit) -> tuple[list[int], list[int]]:
        """For each instruction of a unit, the masks of the units that it takes a token from, and of
        those that it gives one to."""
        names = [field.name for field in HEADER]
        table = self.program.table[self.indices[unit]]
        pops, pushes = (table[:, names.index(name)].tolist() for name in ("pop", "push"))
        return pops, pushes
