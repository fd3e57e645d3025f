"""The register map: byte offsets of registers, written once; hardware, drivers and docs
derive from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .opcodes import Unit

#: Bits of a register.
REGISTER_BITS = 32
#: Why a cycle of a unit passed, in the order of its counters (``docs/timing.md``).
CAUSES = ("busy", "stalled", *(f"token_{unit.name.lower()}" for unit in Unit), "empty")
#: What ``stalled`` is called in reports, per unit.
STALL_NAMES = {"load": "dma", "store": "dma", "vector": "hazard", "gemm": "stalled"}


def named_causes(unit: Unit, cycles: Iterable[int]) -> dict[str, int]:
    """Name the cycles of a unit, given in the order of ``CAUSES``, as reports name the causes."""
    stalled = STALL_NAMES[unit.name.lower()]
    names = (stalled if cause == "stalled" else cause for cause in CAUSES)
    return dict(zip(names, map(int, cycles), strict=True))


@dataclass(frozen=True)
class Register:
    """One register: name, byte offset, access (``r``, ``w`` or ``rw``) and meaning."""

    name: str
    offset: int
    access: str
    doc: str


_CONTROL = (
    ("control", "w", "1: start the program that the registers describe; 2: reset all but memories"),
    ("status", "r", "status code, see isa/status.py"),
    ("error_index", "r", "index of the instruction that stopped the core (token overflow: 0)"),
    ("config_hash", "r", "hash of the core's configuration"),
    ("program_hash", "rw", "hash of the configuration that the program was built for"),
    ("program_addr", "rw", "byte address of the first instruction, a multiple of 4096"),
    ("insn_count", "rw", "number of instructions"),
    ("cycles", "r", "cycles since the start"),
    ("waiting", "r", "per unit 4 bits: units whose token the head of its queue lacks"),
    ("dispatched", "r", "instructions handed to the units"),
)
_ENDED = tuple(
    (f"{unit.name.lower()}_ended", "r", f"instructions that {unit.name.lower()} has ended")
    for unit in Unit
)
#: Names of the registers that count a unit's cycles by cause, for each unit.
COUNTERS = tuple(tuple(f"{unit.name.lower()}_{cause}" for cause in CAUSES) for unit in Unit)
_COUNTERS = tuple(
    (name, "r", f"cycles of {unit.name.lower()}: {cause}")
    for unit, names in zip(Unit, COUNTERS, strict=True)
    for name, cause in zip(names, CAUSES, strict=True)
)

REGISTERS: tuple[Register, ...] = tuple(
    Register(name, REGISTER_BITS // 8 * position, access, doc)
    for position, (name, access, doc) in enumerate((*_CONTROL, *_ENDED, *_COUNTERS))
)
OFFSETS = {register.name: register.offset for register in REGISTERS}
CONTROL_START, CONTROL_RESET = 1, 2


def read_causes(read: Callable[[str], int]) -> dict[str, dict[str, int]]:
    """Cycles by unit and cause, from registers by name."""
    return {
        unit.name.lower(): named_causes(unit, map(read, names))
        for unit, names in zip(Unit, COUNTERS, strict=True)
    }
