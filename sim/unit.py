"""What all units with an instruction queue share: taking the next instruction when its tokens are
there.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..isa.insn import Insn
from ..isa.opcodes import Unit
from .queue import Queue
from .regs import Account

if TYPE_CHECKING:
    from .core import Core


@dataclass(frozen=True)
class Taken:
    """An instruction at the head of its queue: visible from a cycle, its tokens available from
    cycles.
    """

    index: int
    insn: Insn
    visible: int
    tokens: dict[Unit, int]

    @property
    def earliest(self) -> int:
        """First cycle in which it can start as far as queue and tokens go."""
        return max((self.visible, *self.tokens.values()))


class UnitProcess:
    """Base of the units' processes."""

    unit: Unit

    def __init__(self, core: Core):
        self.core = core
        self.env = core.env
        self.params = core.params
        self.queue = Queue(core.env, core.params.queue_depth)
        self.account = Account(self.unit)
        #: The instruction at the head that waits for tokens, and those that it has already.
        self.head: tuple[int, Insn, dict[Unit, int]] | None = None
        core.env.process(self.run())

    def run(self) -> Generator[Any, Any, None]:
        """The unit's process."""
        raise NotImplementedError

    def take(self) -> Generator[Any, Any, Taken]:
        """Wait for the next instruction and its tokens."""
        index, visible = yield from self.queue.get()
        insn = self.core.insns[index]
        tokens: dict[Unit, int] = {}
        self.head = (index, insn, tokens)
        for giver in Unit:
            if insn.pop >> giver & 1:
                tokens[giver] = yield self.core.tokens.counters[giver, self.unit].get()
        self.head = None
        return Taken(index, insn, visible, tokens)

    def start(self, taken: Taken, cycle: int) -> Generator[Any, Any, None]:
        """Let time pass until the instruction starts, and start it: its effect on memories happens
        here, because everything that it depends on has ended."""
        yield self.env.timeout(cycle - self.env.now)
        self.queue.taken(cycle)
        self.core.started(taken.index, cycle)

    def end(self, taken: Taken, cycle: int) -> None:
        """The instruction ends in ``cycle`` (known in advance) and pushes its tokens; all of its
        cycles are accounted for."""
        self.core.causes[taken.index] = self.account.since_last()
        self.core.ended(taken.index, cycle)
        self.core.tokens.push(self.unit, taken.insn.push, cycle)

    def missing(self) -> int:
        """Mask of units whose token the head lacks, once nothing moves any more."""
        if self.head is None:
            return 0
        _, insn, got = self.head
        return sum(
            1 << giver
            for giver in Unit
            if insn.pop >> giver & 1
            and giver not in got
            and self.core.tokens.empty(giver, self.unit)
        )
