"""The accelerator as the compiler sees it: its configuration and memory, and shares of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import IntEnum

from ....isa.encoding import VECTOR_EXTENT_BITS
from ....isa.errors import VdlaError
from ....isa.memory import MemoryParams
from ....isa.params import PRESETS, HwParams
from ..cpu.target import Cpu

#: Values of ``Node.target``: the accelerator, and the host, which runs what it refuses.
ACCELERATOR, HOST = "accel", Cpu.name
#: Steps from which a sum of weights or inputs is two instructions, the second one a loop, and not
#: as many micro-ops.
LONG_SUM = 33
#: Eighths of ``wgt`` for weights that are prefetched, where no program-level option says another.
USUAL_EIGHTHS = 2


@dataclass(frozen=True)
class Machine:
    """The accelerator that code is generated for: a configuration, the memory behind it, and how
    many virtual threads a planner uses.
    """

    params: HwParams
    memory: MemoryParams
    vthreads: int

    def room(self, times: int | None) -> Budget:
        """Entries that a program uses which may have so many ``times`` those of the preset with the
        same blocks; None: all entries.

        A program for fewer entries runs on this machine, too. What estimates choose among more
        tiles is not always better."""
        whole, block = Budget.whole(self.params), self.params.block
        if times is None:
            return whole
        usual = asdict(Budget.whole(PRESETS[f"{block}x{block}"]))
        return Budget(**{name: min(whole.of(name), times * usual[name]) for name in usual})

    def estimated(self, times: int | None) -> Machine:
        """The machine by whose cycles such a program is planned: on the usual bus of ``times`` its
        width, where that is narrower, with the usual latency divided by ``times``, where that is
        longer. A part is what it is, and a bus may be too narrow for the instructions."""
        if times is None or self.memory.part:
            return self
        usual, own = MemoryParams(), self.memory
        latency = max(own.read_latency_cycles, usual.read_latency_cycles // times)
        params, bus_bits = self.params, min(own.bus_bits, usual.bus_bits * times)
        with suppress(VdlaError):
            params = replace(params, bus_bits=bus_bits)
        memory = replace(own, bus_bits=params.bus_bits, read_latency_cycles=latency)
        return replace(self, params=params, memory=memory)

    @property
    def rooms(self) -> tuple[int | None, ...]:
        """What programs may use, for :meth:`room`: what the preset has, twice as much and so on
        while the machine has more of something, and at last all of it."""
        found: list[int | None] = []
        while True:
            times = 1 << len(found)
            if self.room(times) == self.room(None) and self.estimated(times) == self:
                return *found, None
            found.append(times)


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
        """All entries of all scratchpads."""
        return Budget(**{name: params.depth(name) for name in Budget.__dataclass_fields__})

    def without(self, entries: Mapping[str, int]) -> Budget:
        """The budget less these ``entries``, by scratchpad."""
        mine = asdict(self)
        return replace(self, **{name: mine[name] - count for name, count in entries.items()})

    def of(self, scratchpad: str) -> int:
        """The entries of one scratchpad."""
        return getattr(self, scratchpad)

    def for_tiles(self) -> Budget:
        """What tiles may use: micro-ops of the next operator are loaded while those of this one are
        in use."""
        return replace(self, uop=self.uop // 2)

    def lack(self, needs: Mapping[str, int]) -> str:
        """Which scratchpad has fewer entries than are needed, or an empty string."""
        for name, entries in needs.items():
            if entries > self.of(name):
                return f"{name} needs {entries} entries of {self.of(name)}"
        return ""


class Track(IntEnum):
    """A sequence of operators in a program, which keeps its order. The instructions of all tracks
    are merged, so that units work on several operators at the same time.
    """

    #: Operators with most of their work on the tensor core, and on the vector unit.
    TENSOR = 0
    VECTOR = 1
    #: The mean of an image, and the classifier that reads it, where both run beside the convolution
    #: that makes the image (:class:`.templates.convolution.Classifier`).
    MEAN = 2
    CLASSIFIER = 3


@dataclass(frozen=True)
class Context:
    """What is decided for an operator, because of its neighbours, before its own choice is made.

    Attributes
    ----------
    budget : what it may use of the scratchpads
    rows_first : whether it shall compute all channels of some pixels before it begins other pixels,
        so that its reader can follow closely; None where either will do
    beside : whether the program has operators of both tracks, which run at the same time
    scarce_loads : whether the program has so much to load that an operator that loads less is worth
        some cycles of its own
    maker_cycles : cycles of the operator that makes its image, if it can read some rows of it while
        others are made; else 0
    in_parts : whether it shall finish some channels long before others, because a classifier that
        runs beside it begins with those
    """

    budget: Budget
    rows_first: bool | None = None
    beside: bool = False
    scarce_loads: bool = False
    maker_cycles: int = 0
    in_parts: bool = False

    def without(self, entries: Mapping[str, int]) -> Context:
        """The context with a budget less these ``entries``, by scratchpad."""
        return replace(self, budget=self.budget.without(entries))


def vector_loops(extent: int) -> tuple[int, ...]:
    """The extents of loops of a vector instruction that together are one of an extent; none where
    that has a prime factor beyond their limit."""
    most = (1 << VECTOR_EXTENT_BITS) - 1
    if extent <= most:
        return (extent,)
    inner = next((n for n in range(most, 1, -1) if extent % n == 0), extent)
    outer = () if inner == extent else vector_loops(extent // inner)
    return (*outer, inner) if outer else ()
