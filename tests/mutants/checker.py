"""Bugs in the static checker: it misses what is wrong, or complains about what is right."""

from __future__ import annotations

from vdla.isa import check as check_module
from vdla.isa import hazards, order

from .checks import tests
from .plant import Mutant

#: The checker on small programs, and against one written the slow way.
CASES = tests("isa/test_check.py")

#: The checker against hazards that running a program in other orders has proved.
HAZARDS = tests("campaign/test_hazards.py::test_hazards_are_found")

CHECKER = (
    Mutant("forgets what others waited for", "checker", order._Machine._start,
           "tuple(map(max, clock, sent))", "sent", CASES),
    Mutant("believes a token too much", "checker", order._Machine._start,
           "self.order.position[index] + 1", "self.order.position[index] + 2", HAZARDS),
    Mutant("queues hold one more", "checker", order._Machine._dispatch,
           "len(queue) >= self.depth", "len(queue) > self.depth", CASES),
    Mutant("queues are counted as empty", "checker", order.possible_overflow,
           "ahead - params.queue_depth", "ahead", CASES),
    Mutant("sees no hazard of writes", "checker", hazards._Walk._write,
           'self._ordered("war"', '(lambda *_: None)("war"', HAZARDS),
    Mutant("leftover tokens are fine", "checker", check_module._tokens,
           "() if order.stuck else order.leftovers", "()", CASES),
    Mutant("only the last reader counts", "checker", hazards._Walk._write,
           "for reader, read in space.read.items():",
           "for reader, read in list(space.read.items())[-1:]:", CASES),
    Mutant("checks the first entry only", "checker", hazards._Walk._ordered,
           "positions.max(initial=0) <= self.clock[other]",
           "positions.flat[0] <= self.clock[other]", CASES),
    Mutant("padding takes no entries", "checker", hazards._Walk._load,
           "(insn.entries,), (1,)", "(insn.x_size * insn.y_size * insn.z_size,), (1,)", CASES),
    Mutant("rows of one entry", "checker", hazards._Walk._dram_box,
           "insn.x_size * entry_bytes // unit", "entry_bytes // unit", CASES),
    Mutant("micro-ops from stores are known", "checker", hazards._Walk._load_uops,
           "not source.view(self.spaces[\"dram\"].written).any()", "True", CASES),
    Mutant("a sum needs no beginning", "checker", hazards._Walk._accumulates,
           "if bad.any():", "if bad.all():", CASES),
)  # fmt: skip
