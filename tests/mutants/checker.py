"""Bugs in the static checker: it misses what is wrong, or complains about what is right."""

from __future__ import annotations

from vdla.isa import check as check_module
from vdla.isa import hazards, order, steps

from .checks import tests
from .plant import Mutant

#: The checker on small programs, and against one written the slow way.
CASES = tests("isa/test_check.py")

#: The checker against hazards that running a program in other orders has proved.
HAZARDS = tests("campaign/test_hazards.py::test_hazards_are_found")

CHECKER = (
    Mutant("forgets what others waited for", "checker", order._run.__wrapped__,
           "max(now[unit, other], clocks[giver, other])", "clocks[giver, other]", CASES),
    Mutant("believes a token too much", "checker", order._run.__wrapped__,
           "position[giver] + 1", "position[giver] + 2", HAZARDS),
    Mutant("queues hold one more", "checker", order._run.__wrapped__,
           "queued[unit] - started[unit] >= depth", "queued[unit] - started[unit] > depth", CASES),
    Mutant("queues are counted as empty", "checker", order.possible_overflow,
           "ahead - params.queue_depth", "ahead", CASES),
    Mutant("sees no hazard of writes", "checker", hazards._walk.__wrapped__,
           "unit >= 0 and stage <= 1 + reader", "False", HAZARDS),
    Mutant("leftover tokens are fine", "checker", check_module._tokens,
           "() if order.stuck else order.leftovers", "()", CASES),
    Mutant("only the last reader counts", "checker", hazards._walk.__wrapped__,
           "for reader in range(2):", "for reader in range(1, 2):", CASES),
    Mutant("checks the first entry only", "checker", hazards._walk.__wrapped__,
           "if written[offset + entries[i]] > clocks[insn, writer]:",
           "if i == 0 and written[offset + entries[i]] > clocks[insn, writer]:", CASES),
    Mutant("padding takes no entries", "checker", steps._load_parts,
           "* rows * row_entries", "* columns[\"y_size\"] * columns[\"x_size\"]", CASES),
    Mutant("packed weights are half of all", "checker", steps._load_parts,
           "params.dram_entry_bytes(name, widen)", "params.entry_bytes(name) >> widen", CASES),
    Mutant("rows of one entry", "checker", steps._dram_part,
           "columns[\"x_size\"] * entry_bytes // unit", "entry_bytes // unit", CASES),
    Mutant("micro-ops from stores are known", "checker", hazards._Walk._load_uops,
           "not stored[self._entries(source)].any()", "True", CASES),
    Mutant("looks up what nothing set", "checker", steps._vector_parts,
           "looks_up & (insns < first_set[Opcode.TABLE])", "looks_up & (insns < 0)", CASES),
    Mutant("a table is an entry of par", "checker", steps._parts,
           "entries = params.table_entries", "entries = 1", CASES),
    Mutant("a window writes what is not whole", "checker", steps._written,
           "n - columns[\"imm\"]", "n", CASES),
    Mutant("a sum needs no beginning", "checker", hazards._Walk._accumulates,
           "if bad.any():", "if bad.all():", CASES),
)  # fmt: skip
