"""What is explored: networks, objectives, limits and knobs, from a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..bench.networks import find_model
from ..bench.sweep import machine
from ..compiler.choose.records import Records
from ..compiler.frontends.load import load_graph
from ..isa.errors import VdlaError
from ..isa.memory import MEMORY_LEGAL, MemoryParams
from ..isa.params import LEGAL, HwParams, legal_text
from ..isa.text_files import read_toml

#: What can be minimised or limited, with what it is counted in. A network's part counts as often as
#: its weight says.
OBJECTIVES = {
    "cycles": "cycles an image",
    "time_us": "microseconds an image",
    "period_ns": "nanoseconds a cycle",
    "dram_bytes": "bytes to and from DRAM an image",
    "energy_uj": "microjoules an image",
    "area_um2": "um2 in standard cells and macros",
    "toggles_uj": "microjoules an image in standard cells and macros",
    "scratchpad_bytes": "bytes on the chip",
    "lut": "lookup tables",
    "ff": "flip-flops",
    "dsp": "multipliers",
    "bram": "block RAMs",
}
#: What needs libraries of cells.
IN_CELLS = frozenset({"area_um2", "toggles_uj"})
SEARCHES = ("surrogate", "nsga2", "tpe", "random")
#: The knob that stands for block_in and block_out, which are equal.
BLOCK = "block"
#: The knob of the schedules: virtual threads of the compiler's planner.
SCHEDULE, SCHEDULE_LEGAL = "vthreads", range(1, 17)
#: Legal values of each knob.
_LEGAL = {BLOCK: LEGAL["block_in"], SCHEDULE: SCHEDULE_LEGAL, **MEMORY_LEGAL, **LEGAL}
del _LEGAL["block_in"], _LEGAL["block_out"]
MOST_TRIALS, MOST_VALUES, MOST_SEED = 1_000_000, 1000, 2**32 - 1


@dataclass(frozen=True)
class Spec:
    """An exploration.

    Attributes
    ----------
    networks : models, as :func:`~..bench.workloads.find_model` takes them, and how often each runs
    objectives : what is minimised, of :data:`OBJECTIVES`
    limits : the most that a design may have of each
    knobs : the values of each knob that is chosen, of :class:`HwParams`, ``block`` or ``vthreads``
    hw, memory : the machine that the search begins at, and whose other knobs stay; its memory
    board : whose device the resources are counted for; a limit but for designs in cells
    records : a file of records, whose choices come before the planner's on the machines that they
        are of; without one those of the package, as for ``vdla.compile``
    energy : the table of energies, of the package or a TOML file
    liberty, macros : files of cells and of RAM macros, for :data:`IN_CELLS`; the first of each give
        the values, all of them the orders of designs
    search : one of :data:`SEARCHES`
    seed : of all that is random
    trials : designs that are compiled and simulated
    """

    networks: Mapping[str, float]
    objectives: tuple[str, ...]
    limits: Mapping[str, float]
    knobs: Mapping[str, tuple[int, ...]]
    hw: str = "8x8"
    memory: str = "vta"
    board: str = "ulx3s-85f"
    records: str | None = None
    energy: str = "accelergy_40nm"
    liberty: tuple[str, ...] = ()
    macros: tuple[str, ...] = ()
    search: str = "surrogate"
    seed: int = 0
    trials: int = 100

    @property
    def in_cells(self) -> frozenset[str]:
        """The objectives and limits that need a design in standard cells."""
        return IN_CELLS & {*self.objectives, *self.limits}

    @property
    def size(self) -> int:
        """Combinations of the knobs' values."""
        size = 1
        for values in self.knobs.values():
            size *= len(values)
        return size

    def machine(self, knobs: Mapping[str, int]) -> tuple[HwParams, MemoryParams]:
        """The machine with values of knobs. Raises VdlaError where it is not legal."""
        plain = {name: v for name, v in knobs.items() if name not in (BLOCK, SCHEDULE)}
        if BLOCK in knobs:
            plain |= {"block_in": knobs[BLOCK], "block_out": knobs[BLOCK]}
        return machine(self.hw, self.memory, plain)

    @classmethod
    def load(cls, path: Path) -> Spec:
        """The exploration that a TOML file describes.

        Raises VdlaError for what is wrong with it, and for models that cannot be read.
        """
        entries = read_toml(path)
        try:
            return cls.from_dict(entries, path.parent)
        except VdlaError as error:
            raise VdlaError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any], folder: Path) -> Spec:
        """The same from a dictionary; models and files are looked for in the folder, too."""
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(entries) - set(known)):
            raise VdlaError(f"expected {', '.join(known)}, got {unknown[0]!r}")
        for name in ("networks", "objectives", "knobs"):
            if not entries.get(name):
                raise VdlaError(f"{name}: expected at least one")
        given = dict(entries)
        for name in ("hw", "memory", "board", "energy", "search"):
            given[name] = _text(name, given.get(name, getattr(cls, name)))
        if given.get("records") is not None:
            given["records"] = _near(_text("records", given["records"]), folder)
            Records.load(given["records"])  # what cannot be read is said before the work
        for name in ("hw", "memory", "energy"):
            given[name] = _near(given[name], folder)
        for name in ("liberty", "macros"):
            files = given.get(name, [])
            if not isinstance(files, list):
                raise VdlaError(f"{name}: expected a list of files, got {files!r}")
            given[name] = tuple(_near(_text(name, file), folder) for file in files)
            for file in given[name]:
                if not Path(file).is_file():
                    raise VdlaError(f"{name}: expected a file, got {file!r}")
        for name, most in (("seed", MOST_SEED), ("trials", MOST_TRIALS)):
            given[name] = _integer(name, given.get(name, getattr(cls, name)), most)
        if given["search"] not in SEARCHES:
            raise VdlaError(f"search: expected one of {', '.join(SEARCHES)}, got {given['search']}")
        spec = cls(
            **given
            | {
                "networks": _networks(given["networks"], folder),
                "objectives": _objectives(given["objectives"]),
                "limits": _limits(given.get("limits", {})),
                "knobs": _knobs(given["knobs"]),
            }
        )
        spec.machine({})
        if spec.in_cells and not spec.liberty:
            raise VdlaError(f"liberty: expected a list of files for {min(spec.in_cells)}, got none")
        if (spec.liberty or spec.macros) and not spec.in_cells:
            raise VdlaError(
                f"liberty: expected {' or '.join(sorted(IN_CELLS))} as an objective or a limit"
                " with it, got neither"
            )
        for model in spec.networks:
            load_graph(find_model(model, 1))  # what cannot be read is said before the work
        return spec


def _near(name: str, folder: Path) -> str:
    """A name, or the path of a file where there is one of this name in the folder."""
    return str(folder / name) if (folder / name).is_file() else name


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise VdlaError(f"{what}: expected text, got {value!r}")
    return value


def _integer(what: str, value: Any, most: int) -> int:
    least = 0 if what == "seed" else 1
    if type(value) is not int or not least <= value <= most:
        raise VdlaError(f"{what}: expected an integer {least}..{most}, got {value!r}")
    return value


def _number(what: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise VdlaError(f"{what}: expected a number above 0, got {value!r}")
    return value


def _table(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise VdlaError(f"{what}: expected a table, got {value!r}")
    return value


def _networks(value: Any, folder: Path) -> dict[str, float]:
    return {
        _near(name, folder): _number(f"networks.{name}", weight)
        for name, weight in _table("networks", value).items()
    }


def _objectives(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise VdlaError(f"objectives: expected a list, got {value!r}")
    for name in value:
        _check_objective("objectives", name)
        if value.count(name) > 1:
            raise VdlaError(f"objectives: expected {name} once, got it {value.count(name)} times")
    return tuple(value)


def _check_objective(what: str, name: Any) -> None:
    if not isinstance(name, str) or name not in OBJECTIVES:
        raise VdlaError(f"{what}: expected one of {', '.join(OBJECTIVES)}, got {name!r}")


def _limits(value: Any) -> dict[str, float]:
    for name in _table("limits", value):
        _check_objective("limits", name)
    return {name: _number(f"limits.{name}", most) for name, most in value.items()}


def _knobs(value: Any) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, given in _table("knobs", value).items():
        what = f"knobs.{name}"
        legal = _LEGAL.get(name)
        if legal is None:
            raise VdlaError(f"knobs: expected one of {', '.join(_LEGAL)}, got {name!r}")
        values = _values(what, given)
        for one in values:
            if type(one) is not int or one not in legal:
                raise VdlaError(f"{what}: expected {legal_text(legal)}, got {one!r}")
        if len(set(values)) != len(values):
            raise VdlaError(f"{what}: expected each value once, got {values}")
        found[name] = tuple(sorted(values))
    return found


def _values(what: str, given: Any) -> list[int]:
    """A list of values, or those from one to another, each twice the one before."""
    if isinstance(given, list):
        if not 0 < len(given) <= MOST_VALUES:
            raise VdlaError(f"{what}: expected 1 to {MOST_VALUES} values, got {len(given)}")
        return given
    if not isinstance(given, dict) or set(given) != {"from", "to"}:
        raise VdlaError(f"{what}: expected a list of values or {{from, to}}, got {given!r}")
    low, high = given["from"], given["to"]
    if type(low) is not int or type(high) is not int or not 0 < low <= high:
        raise VdlaError(f"{what}: expected 0 < from <= to, got from {low!r} to {high!r}")
    return [low << n for n in range((high // low).bit_length())]
