"""Which instructions certainly end before which others start, and where a program gets stuck.

Queues, token counters and the in-order dispatch of fetch form a marked graph: whether it runs to
its end depends on no latency, so one greedy execution settles it. A vector clock for every
instruction records what has certainly ended when it starts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .insn import Insn
from .opcodes import Unit, Units
from .params import HwParams

#: For each unit, how many of its instructions have certainly ended.
Clock = tuple[int, ...]

_ZERO: Clock = (0, 0, 0, 0)
#: Units of each mask, so that the inner loop does not decode bits.
_MEMBERS = tuple(tuple(unit for unit in Unit if mask >> unit & 1) for mask in range(16))


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
    position : list of int
        For each instruction, how many of its unit stand before it in the program.
    clocks : list of Clock or None
        What has certainly ended when each instruction starts; None if it never starts.
    by_unit : list of list of int
        Instruction indices of each unit.
    waiting : dict of Unit to Waiting
        Units that wait for ever, if any.
    blocked : int or None
        The instruction that fetch can never dispatch, because the queue of its unit stays full.
    leftovers : list of Leftover
        Tokens that remain at the end.
    """

    position: list[int]
    clocks: list[Clock | None]
    by_unit: list[list[int]] = field(default_factory=lambda: [[], [], [], []])
    waiting: dict[Unit, Waiting] = field(default_factory=dict)
    blocked: int | None = None
    leftovers: list[Leftover] = field(default_factory=list)

    @property
    def stuck(self) -> bool:
        """Whether an instruction never starts."""
        return bool(self.waiting)


def execute_order(insns: tuple[Insn, ...], params: HwParams) -> Order:
    """Run the token protocol of a program, without its data."""
    order = Order([0] * len(insns), [None] * len(insns))
    for index, insn in enumerate(insns):
        mine = order.by_unit[insn.unit]
        order.position[index] = len(mine)
        mine.append(index)
    return _Machine(insns, params, order).run()


class _Machine:
    """Queues and tokens; a token is the pusher's clock with the pusher itself included."""

    def __init__(self, insns: tuple[Insn, ...], params: HwParams, order: Order) -> None:
        self.insns = insns
        self.depth = params.queue_depth
        self.order = order
        self.dispatched = 0
        self.queues: list[deque[int]] = [deque() for _ in Unit]
        self.now: list[Clock] = [_ZERO] * len(Unit)
        self.tokens: list[list[deque[tuple[int, Clock]]]] = [[deque() for _ in Unit] for _ in Unit]

    def run(self) -> Order:
        """Dispatch and start instructions until none can move."""
        moved = True
        while moved:
            moved = self._dispatch()
            for unit in Unit:
                while self._start(unit):
                    moved = True
        self._report()
        return self.order

    def _dispatch(self) -> bool:
        before = self.dispatched
        while self.dispatched < len(self.insns):
            queue = self.queues[self.insns[self.dispatched].unit]
            if len(queue) >= self.depth:
                break
            queue.append(self.dispatched)
            self.dispatched += 1
        return self.dispatched > before

    def _start(self, unit: Unit) -> bool:
        queue = self.queues[unit]
        if not queue:
            return False
        insn = self.insns[queue[0]]
        sources = _MEMBERS[insn.pop]
        if not all(self.tokens[source][unit] for source in sources):
            return False
        index = queue.popleft()
        clock = self.now[unit]
        for source in sources:
            _, sent = self.tokens[source][unit].popleft()
            clock = tuple(map(max, clock, sent))
        self.now[unit] = clock
        self.order.clocks[index] = clock
        if insn.push:
            ended = list(clock)
            ended[unit] = self.order.position[index] + 1
            token = (index, tuple(ended))
            for target in _MEMBERS[insn.push]:
                self.tokens[unit][target].append(token)
        return True

    def _report(self) -> None:
        order = self.order
        for unit in Unit:
            if queue := self.queues[unit]:
                sources = _MEMBERS[self.insns[queue[0]].pop]
                missing = tuple(s for s in sources if not self.tokens[s][unit])
                order.waiting[unit] = Waiting(queue[0], missing)
        if self.dispatched < len(self.insns):
            order.blocked = self.dispatched
        for source in Unit:
            for target in Unit:
                order.leftovers += [
                    Leftover(index, target) for index, _ in self.tokens[source][target]
                ]


def possible_overflow(insns: tuple[Insn, ...], params: HwParams, order: Order) -> dict[int, Unit]:
    """Instructions whose push may find the counter of a unit full, whatever the latencies.

    At a push, the consumer has started at least the instructions that have ended by the pusher's
    clock, and at least those that stand before the pusher in the program, less as many as the
    consumer's queue can hold.
    """
    limit = 2**params.token_bits - 1
    found: dict[int, Unit] = {}
    for source in Unit:
        for target in _MEMBERS[15 & ~(1 << source)]:
            mask = Units(1 << target)
            pops = [0]
            for index in order.by_unit[target]:
                pops.append(pops[-1] + bool(insns[index].pop & (1 << source)))
            pushed, ahead = 0, 0
            for index in order.by_unit[source]:
                clock = order.clocks[index]
                if clock is None or not insns[index].push & mask:
                    continue
                pushed += 1
                while ahead < len(pops) - 1 and order.by_unit[target][ahead] < index:
                    ahead += 1
                started = max(clock[target], ahead - params.queue_depth, 0)
                if pushed - pops[started] > limit:
                    found.setdefault(index, target)
    return found
