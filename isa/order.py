"""Which instructions certainly end before which others start, and where a program gets stuck.

Queues, token counters and the in-order dispatch of fetch form a marked graph: whether it runs to
its end depends on no latency, so one greedy execution settles it. A vector clock for every
instruction records what has certainly ended when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .insn import Insn
from .native import Ints, Table, native
from .opcodes import Unit
from .params import HwParams

_UNITS = len(Unit)


@dataclass(frozen=True)
class Leftover:
    """A token pushed and never taken: by which instruction, and for whom."""

    instruction: int
    unit: Unit


@dataclass(frozen=True)
class Waiting:
    """A unit whose next instruction never starts, and the units whose tokens it lacks."""

    instruction: int
    missing: tuple[Unit, ...]


@dataclass
class Order:
    """What the greedy execution found.

    Attributes
    ----------
    units : int64 [instructions]
        The unit of each instruction.
    pops, pushes : int64 [instructions]
        Its masks of tokens.
    position : int64 [instructions]
        For each instruction, how many of its unit stand before it in the program.
    by_unit : list of int64 arrays
        Instruction indices of each unit.
    clocks : int64 [instructions, units]
        When an instruction starts, this many instructions of each unit have certainly ended.
    started : list of int
        How many instructions of each unit start; the others never do.
    waiting : dict of Unit to Waiting
        Units that wait for ever, if any.
    blocked : int or None
        The instruction that fetch can never dispatch, because the queue of its unit stays full.
    leftovers : list of Leftover
        Tokens that remain at the end.
    """

    units: np.ndarray
    pops: np.ndarray
    pushes: np.ndarray
    position: np.ndarray
    by_unit: list[np.ndarray]
    clocks: np.ndarray
    started: list[int] = field(default_factory=list)
    waiting: dict[Unit, Waiting] = field(default_factory=dict)
    blocked: int | None = None
    leftovers: list[Leftover] = field(default_factory=list)

    @property
    def stuck(self) -> bool:
        """Whether an instruction never starts."""
        return bool(self.waiting)

    def starts(self, index: int) -> bool:
        """Whether an instruction starts."""
        return bool(self.position[index] < self.started[self.units[index]])

    def givers(self, source: Unit, target: Unit) -> np.ndarray:
        """The instructions of a unit that push a token for another, in order."""
        mine = self.by_unit[source]
        return mine[self.pushes[mine] >> target & 1 == 1]


def execute_order(insns: tuple[Insn, ...], params: HwParams) -> Order:
    """Run the token protocol of a program, without its data."""
    units, pops, pushes = (
        np.array(values, np.int64)
        for values in (
            [insn.unit for insn in insns], [insn.pop for insn in insns],
            [insn.push for insn in insns],
        )
    )  # fmt: skip
    by_unit = [np.flatnonzero(units == unit) for unit in Unit]
    position = np.zeros(len(insns), np.int64)
    for mine in by_unit:
        position[mine] = np.arange(len(mine))
    clocks = np.zeros((len(insns), _UNITS), np.int64)
    order = Order(units, pops, pushes, position, by_unit, clocks)
    pairs = [order.givers(source, target) for source in Unit for target in Unit]
    firsts = np.cumsum([0, *map(len, pairs)])
    unit_firsts = np.cumsum([0, *map(len, by_unit)])
    queued, started = (np.zeros(_UNITS, np.int64) for _ in range(2))
    pushed, taken = (np.zeros((_UNITS, _UNITS), np.int64) for _ in range(2))
    dispatched = _run(
        units, pops, pushes, position, np.concatenate(by_unit), unit_firsts, np.concatenate(pairs),
        firsts, params.queue_depth, queued, started, pushed, taken,
        np.zeros((_UNITS, _UNITS), np.int64), clocks,
    )  # fmt: skip
    order.started = started.tolist()
    for unit in Unit:
        if queued[unit] > started[unit]:
            first = int(by_unit[unit][started[unit]])
            lacks = [s for s in Unit if pops[first] >> s & 1 and taken[s, unit] >= pushed[s, unit]]
            order.waiting[unit] = Waiting(first, tuple(lacks))
    if dispatched < len(insns):
        order.blocked = dispatched
    for source in Unit:
        for target in Unit:
            left = order.givers(source, target)[taken[source, target] : pushed[source, target]]
            order.leftovers += [Leftover(index, target) for index in left.tolist()]
    return order


@native
def _run(
    units: Ints, pops: Ints, pushes: Ints, position: Ints, by_unit: Ints, unit_firsts: Ints,
    tokens: Ints, firsts: Ints, depth: int, queued: Ints, started: Ints, pushed: Table,
    taken: Table, now: Table, clocks: Table,
) -> int:  # fmt: skip
    """Dispatch and start instructions until none can move. Returns how many are dispatched.

    Parameters
    ----------
    by_unit : instructions, those of unit u from ``unit_firsts[u]``
    tokens : who gives each token, those of unit s for unit t from ``firsts[s * units + t]``
    queued, started : by unit, how many instructions were dispatched to its queue, and have left it
    pushed, taken : by source and target, how many tokens were given and taken
    now : by unit, the clock of its latest instruction
    """
    dispatched = 0
    moved = True
    while moved:
        moved = False
        while dispatched < len(units):
            unit = units[dispatched]
            if queued[unit] - started[unit] >= depth:
                break
            queued[unit] += 1
            dispatched += 1
            moved = True
        for unit in range(_UNITS):
            ready = queued[unit] > started[unit]
            while ready:
                index = by_unit[unit_firsts[unit] + started[unit]]
                for source in range(_UNITS):
                    if pops[index] >> source & 1 and taken[source, unit] >= pushed[source, unit]:
                        ready = False
                if not ready:
                    break
                for source in range(_UNITS):
                    if pops[index] >> source & 1:
                        giver = tokens[firsts[source * _UNITS + unit] + taken[source, unit]]
                        taken[source, unit] += 1
                        # A token is the giver's clock, with the giver itself included.
                        for other in range(_UNITS):
                            now[unit, other] = max(now[unit, other], clocks[giver, other])
                        now[unit, source] = max(now[unit, source], position[giver] + 1)
                for other in range(_UNITS):
                    clocks[index, other] = now[unit, other]
                    pushed[unit, other] += pushes[index] >> other & 1
                started[unit] += 1
                moved = True
                ready = queued[unit] > started[unit]
    return dispatched


def possible_overflow(params: HwParams, order: Order) -> dict[int, Unit]:
    """Instructions whose push may find the counter of a unit full, whatever the latencies.

    At a push, the consumer has started at least the instructions that have ended by the pusher's
    clock, and at least those that stand before the pusher in the program, less as many as the
    consumer's queue can hold.
    """
    limit = 2**params.token_bits - 1
    found: dict[int, Unit] = {}
    for source in Unit:
        for target in Unit:
            if target == source:
                continue
            mine = order.by_unit[target]
            pops = np.concatenate([[0], np.cumsum(order.pops[mine] >> source & 1)])
            givers = order.givers(source, target)
            givers = givers[order.position[givers] < order.started[source]]
            ahead = np.searchsorted(mine, givers)
            ended = order.clocks[givers, target]
            started = np.maximum(np.maximum(ended, ahead - params.queue_depth), 0)
            waiting = np.arange(1, len(givers) + 1) - pops[started]
            for index in givers[waiting > limit].tolist():
                found.setdefault(index, target)
    return found
