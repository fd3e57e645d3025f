"""Energy from exact counts and a table of published energies.

The counts are those of the simulated instructions. The energies are somebody else's, of another
technology than an FPGA's: a table says which, and a person can give another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

from ..isa.errors import VdlaError
from ..isa.params import MEMORIES, HwParams
from ..isa.text_files import read_toml

_TABLES = Path(__file__).parent / "energy_tables"
#: The tables of the package.
NAMES = tuple(sorted(path.stem for path in _TABLES.glob("*.toml")))
#: Scratchpads of words of 32 bits, and so of the table's accumulators.
_WIDE = ("par", "acc", "tmp")


@dataclass(frozen=True)
class Memory:
    """Energy of a byte that a scratchpad of some KiB reads or writes: ``fixed_pj_per_byte +
    size_pj_per_byte * KiB ** exponent``; with ``per_column`` the KiB of one column of the array.
    """

    fixed_pj_per_byte: float
    size_pj_per_byte: float
    exponent: float
    per_column: bool

    def picojoules(self, accessed_bytes: float, name: str, params: HwParams) -> float:
        """The energy of so many bytes of a scratchpad."""
        kib = params.depth(name) * params.entry_bytes(name) / 1024
        kib /= params.block_out if self.per_column else 1
        return accessed_bytes * (
            self.fixed_pj_per_byte + self.size_pj_per_byte * kib**self.exponent
        )


@dataclass(frozen=True)
class EnergyTable:
    """Picojoules of what a design does.

    Attributes
    ----------
    name, technology : where the energies are from, and of what
    mac_pj : a multiply-accumulate of the tensor core
    dram_pj_per_byte : a byte of DRAM
    scratchpad, accumulator : scratchpads of bytes, and of words of 32 bits
    """

    name: str
    technology: str
    mac_pj: float
    dram_pj_per_byte: float
    scratchpad: Memory
    accumulator: Memory

    @classmethod
    def load(cls, name: str) -> EnergyTable:
        """A table of the package by name, or a TOML file. Raises VdlaError for anything else."""
        path = _TABLES / f"{name}.toml" if name in NAMES else Path(name)
        if not path.is_file():
            raise VdlaError(f"energy: expected one of {', '.join(NAMES)} or a file, got {name!r}")
        entries = read_toml(path)
        memories = {
            part: _filled(Memory, entries.get(part), f"{path}: {part}")
            for part in ("scratchpad", "accumulator")
        }
        return _filled(cls, entries | memories, str(path))

    def picojoules(self, row: Mapping[str, Any], params: HwParams) -> dict[str, float]:
        """The energy of a measured run, by what takes it.

        Parameters
        ----------
        row : what :func:`~..bench.sweep.measure_point` gives
        params : the machine
        """
        steps = row["accesses"]["wgt"]["read"]
        moved = row["dram"]["read_bytes"] + row["dram"]["written_bytes"]
        found = {
            "MACs": self.mac_pj * steps * params.peak_macs_per_cycle,
            "DRAM": self.dram_pj_per_byte * moved,
        }
        for name in MEMORIES:
            memory = self.accumulator if name in _WIDE else self.scratchpad
            accessed = sum(row["accesses"][name].values()) * params.entry_bytes(name)
            found[name] = memory.picojoules(accessed, name, params)
        return found


def _filled(kind: Any, entries: Any, where: str) -> Any:
    """A table's dataclass from the entries of a file, each of its type."""
    if not isinstance(entries, dict):
        raise VdlaError(f"{where}: expected a table, got {entries!r}")
    names = {field.name: field.type for field in fields(kind)}
    if set(entries) != set(names):
        wrong = sorted(set(entries) ^ set(names))[0]
        raise VdlaError(f"{where}: expected {', '.join(names)}; see {wrong!r}")
    for name, type_name in names.items():
        value = entries[name]
        good = {
            "str": isinstance(value, str),
            "bool": isinstance(value, bool),
            "float": type(value) in (int, float) and 0 <= value < float("inf"),
        }.get(str(type_name), True)
        if not good:
            raise VdlaError(f"{where}: {name}: expected a {type_name} of at least 0, got {value!r}")
    return kind(**entries)


def kendall(energies: Sequence[Sequence[float]]) -> float:
    """Kendall's tau of the two tables that agree least: 1 for the same order of all designs, -1 for
    opposite ones; ties count for neither. ``energies`` as of :func:`disagreed_order`.
    """
    designs = list(combinations(range(len(energies[0])), 2))
    least = 1.0
    for one, other in combinations(energies, 2):
        alike = [_sign(one[a] - one[b]) * _sign(other[a] - other[b]) for a, b in designs]
        least = min(least, sum(alike) / len(alike) if alike else 1.0)
    return least


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def disagreed_order(energies: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """The pairs of designs that some table puts into another order than the others; ``energies``
    has those of all designs for each table.
    """
    return [
        (a, b)
        for a, b in combinations(range(len(energies[0])), 2)
        if len({_sign(table[a] - table[b]) for table in energies}) > 1
    ]
