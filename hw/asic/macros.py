"""RAM macros of a table, and what memories made of them take."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...isa.errors import VdlaError
from ...isa.text_files import read_toml
from .netlist import Memory

#: The table where no other one is named: 180 nm, of the formula in its first lines.
DEFAULT = Path(__file__).with_name("macros_180nm.toml")


@dataclass(frozen=True)
class Macro:
    """A RAM with one port that writes.

    Attributes
    ----------
    words, bits : its size
    reads : ports that read
    area_um2 : its area
    read_pj, write_pj : the energy of an access of a word
    access_ns : from the clock's edge, or from the address where a memory is read within a cycle,
        to the data
    setup_ns : for how long its inputs must be there before the edge
    pin_pf : the capacitance of an input
    """

    words: int
    bits: int
    reads: int
    area_um2: float
    read_pj: float
    write_pj: float
    access_ns: float
    setup_ns: float
    pin_pf: float


@dataclass(frozen=True)
class Tiled:
    """A memory made of equal macros, side by side and above each other; every group of read ports
    that a macro has not enough of takes a copy. An access takes the macros of one row.

    Attributes
    ----------
    memory, macro : what is made of what
    columns, rows, copies : the macros
    """

    memory: Memory
    macro: Macro
    columns: int
    rows: int
    copies: int

    @property
    def count(self) -> int:
        """How many macros there are."""
        return self.columns * self.rows * self.copies

    @property
    def area_um2(self) -> float:
        """The area of all of them."""
        return self.count * self.macro.area_um2

    def energy_pj(self, reads: float, writes: float) -> float:
        """The energy of so many reads, of all ports together, and writes."""
        read, write = self.macro.read_pj, self.macro.write_pj * self.copies
        return self.columns * (reads * read + writes * write)


@dataclass(frozen=True)
class MacroTable:
    """The macros that there are.

    Attributes
    ----------
    name, origin : what they are, and who says so
    voltage : that their energies are for
    macros : the rows of the table
    """

    name: str
    origin: str
    voltage: float
    macros: tuple[Macro, ...]

    @classmethod
    def load(cls, path: str | Path) -> MacroTable:
        """A table from a TOML file. Raises VdlaError for anything else."""
        table = read_toml(path)
        rows = table.pop("macro", None)
        head = {"name": str, "origin": str, "voltage": float}
        _check(table, head, str(path))
        if not isinstance(rows, list) or not rows:
            raise VdlaError(f"{path}: expected a [[macro]] for each macro, got {rows!r}")
        kinds = {one.name: int if one.type == "int" else float for one in fields(Macro)}
        for number, row in enumerate(rows, 1):
            _check(row, kinds, f"{path}, macro {number}")
        return cls(**table, macros=tuple(Macro(**row) for row in rows))

    def tiled(self, memory: Memory) -> Tiled:
        """The smallest way to make a memory of one kind of macro; of equal ones, the fastest."""
        ways = (
            Tiled(
                memory,
                macro,
                -(-memory.bits // macro.bits),
                -(-memory.words // macro.words),
                -(-len(memory.reads) // macro.reads),
            )
            for macro in self.macros
        )
        return min(ways, key=lambda way: (way.area_um2, way.macro.access_ns))


def _check(entries: Any, kinds: dict[str, type], where: str) -> None:
    """Raise VdlaError unless a table of a file has these keys, with values of these types."""
    if not isinstance(entries, dict) or entries.keys() != kinds.keys():
        found = ", ".join(entries) if isinstance(entries, dict) else repr(entries)
        raise VdlaError(f"{where}: expected the keys {', '.join(kinds)}, got {found or 'none'}")
    for key, kind in kinds.items():
        value = entries[key]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        good = isinstance(value, str) if kind is str else number and 0 <= value < 1e12
        if not good or (kind is int and (not isinstance(value, int) or value < 1)):
            raise VdlaError(f"{where}: {key}: expected {_KINDS[kind]}, got {value!r}")


_KINDS = {str: "text", int: "a whole number from 1", float: "a number from 0"}
