"""Where a core first differs from what it should do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..isa.asm import format_insn
from ..isa.program import Program


@dataclass(frozen=True)
class Divergence:
    """The first difference.

    Attributes
    ----------
    what : str
        What differs, such as ``acc[3]`` or ``start cycle``.
    expected, got : str
        Both values.
    cycle : int
        When it was seen.
    instruction : int or None
        Index of the instruction; None where it is none's.
    unit, text : str
        Unit of the instruction, and its assembly.
    layer, stage, tensor : str
        What the instruction is for, where the program says so.
    address : int or None
        Entry of a scratchpad, or byte address of DRAM.
    """

    what: str
    expected: str
    got: str
    cycle: int
    instruction: int | None = None
    unit: str = ""
    text: str = ""
    layer: str = ""
    stage: str = ""
    tensor: str = ""
    address: int | None = None

    def __str__(self) -> str:
        where = "" if self.instruction is None else f", {self._instruction()}"
        return f"cycle {self.cycle:,}{where}: {self.what}: expected {self.expected}, got {self.got}"

    def _instruction(self) -> str:
        parts = [f"{self.layer}: {self.stage}"] * bool(self.layer) + [self.tensor] * bool(
            self.tensor
        )
        purpose = f" ({', '.join(parts)})" if parts else ""
        return f"instruction {self.instruction}{purpose} of {self.unit}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


class Diverged(AssertionError):
    """A core has diverged; ``divergence`` says where."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(str(divergence))
        self.divergence = divergence


def diverged(
    program: Program, index: int | None, what: str, expected: Any, got: Any, cycle: int,
    address: int | None = None,
) -> Diverged:  # fmt: skip
    """The exception for a difference in an instruction of a program, or in none."""
    named: dict[str, Any] = {}
    if index is not None:
        insn = program.insns[index]
        named = {"instruction": index, "unit": insn.unit.name.lower(), "text": format_insn(insn)}
        if program.notes:
            note = program.notes[index]
            named |= {"layer": note.layer, "stage": note.stage, "tensor": note.tensor}
    found = Divergence(what, str(expected), str(got), cycle, address=address, **named)
    return Diverged(found)
