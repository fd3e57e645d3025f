"""The accelerator as the compiler sees it: its configuration and memory, and shares of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from ....isa.memory import MemoryParams
from ....isa.params import HwParams
from ..cpu.target import Cpu

#: In ``Node.target``: what runs on the accelerator, and what it leaves to the processor.
ACCELERATOR, HOST = "accel", Cpu.name


@dataclass(frozen=True)
class Machine:
    """What code is generated for: a configuration, the memory behind it, and how many virtual
    threads a planner uses.
    """

    params: HwParams
    memory: MemoryParams
    vthreads: int


@dataclass(frozen=True)
class Budget:
    """Entries of every scratchpad that an operator may use."""

    inp: int
    wgt: int
    uop: int
    par: int
    acc: int
    tmp: int
    out: int

    @staticmethod
    def whole(params: HwParams) -> Budget:
        """All of them."""
        return Budget(**{name: params.depth(name) for name in Budget.__dataclass_fields__})

    def without(self, entries: Mapping[str, int]) -> Budget:
        """So many entries less of some scratchpads."""
        mine = asdict(self)
        return replace(self, **{name: mine[name] - count for name, count in entries.items()})

    def of(self, scratchpad: str) -> int:
        """The entries of one scratchpad."""
        return getattr(self, scratchpad)


@dataclass(frozen=True)
class Context:
    """What neighbours decide for an operator, before its own choice.

    Attributes
    ----------
    budget : what it may use of the scratchpads
    rows_first : whether all channels of some pixels shall come before those of others, so that what
        reads them can follow closely; None where nothing asks for either
    beside : whether the vector unit has operators of its own at the same time
    """

    budget: Budget
    rows_first: bool | None = None
    beside: bool = False
