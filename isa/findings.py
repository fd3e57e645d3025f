"""What the static checker reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from .insn import Insn

#: Kinds of findings and what they mean.
KINDS = {
    "illegal": "the core stops at the instruction: undecodable, or a scratchpad index out of range",
    "address": "a micro-op sends the tensor core out of range of a scratchpad",
    "dram": "an access lies outside DRAM",
    "program": "a store overwrites instructions",
    "deadlock": "units wait for tokens that never come",
    "tokens": "a token is pushed and never taken",
    "overflow": "a token counter may exceed its width",
    "raw": "a read may come before the write it needs",
    "war": "a write may come before the read of what it overwrites",
    "uninitialised": "a read of an entry that nothing has written: zero, or left by an earlier run",
    "unknown": "micro-ops come from memory that the program writes; their accesses are not checked",
}


@dataclass(frozen=True)
class Finding:
    """One problem: kind (see :data:`KINDS`), instruction index, unit, and a line that names all
    parties.
    """

    kind: str
    instruction: int
    unit: str
    detail: str

    def to_dict(self) -> dict[str, str | int]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def at(cls, kind: str, index: int, insn: Insn, detail: str) -> Finding:
        """A finding about an instruction of a program."""
        return cls(kind, index, insn.unit.name.lower(), detail)
