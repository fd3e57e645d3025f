"""The rungs of an evaluation, cheapest first: what a design is known to cost, and how it is known.

1. *counted*: block RAMs, multipliers and bytes on the chip follow from the configuration.
2. *model*: lookup tables, flip-flops and the clock, from models that are fitted to synthesised and
   placed samples.
3. *bound*: no run is faster than its multiply-accumulates allow. A design that is beaten even at
   its bound is not compiled.
4. *exact*: cycles, bytes and energies of counted accesses, from the simulation of the networks,
   compiled with the choices of records or of the planner; it has the cycles of the RTL.
5. *cells*: area and energy by toggles, where an exploration asks for them (``silicon.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..bench.sweep import VTHREADS, Point
from ..compiler.choose.records import Records
from ..compiler.targets.vdla.target import machine_key
from ..hw.boards import find_board
from ..hw.fpga.devices import ECP5
from ..hw.fpga.resources import ResourceModel, core_rams, multipliers, shipped_model
from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from .energy import EnergyTable
from .silicon import Silicon
from .spec import BLOCK, SCHEDULE, Spec

Row = dict[str, Any]


@dataclass(frozen=True)
class Design:
    """Values of the knobs, and the machine that has them; or why there is none.

    Attributes
    ----------
    knobs : by the names of the exploration
    params, memory : the machine; None where it is not legal
    error : why it is not
    """

    knobs: Mapping[str, int]
    params: HwParams | None
    memory: MemoryParams | None
    error: str = ""

    @classmethod
    def of(cls, spec: Spec, knobs: Mapping[str, int]) -> Design:
        """The design of an exploration with these values."""
        try:
            return cls(knobs, *spec.machine(knobs))
        except VdlaError as error:
            return cls(knobs, None, None, str(error))

    @property
    def machine(self) -> tuple[HwParams, MemoryParams]:
        """The machine of a legal design."""
        assert self.params is not None and self.memory is not None
        return self.params, self.memory

    @property
    def vthreads(self) -> int:
        """Virtual threads of the planner."""
        return self.knobs.get(SCHEDULE, VTHREADS)

    @property
    def every_knob(self) -> dict[str, int]:
        """All that can be a knob, by the names of an exploration, whether or not it is one."""
        params, memory = self.machine
        found = asdict(memory) | asdict(params)
        return found | {BLOCK: params.block, SCHEDULE: self.vthreads}

    @property
    def toml(self) -> str:
        """The whole configuration, as ``--hw`` of any command reads it from a file."""
        return "".join(f"{name} = {value}\n" for name, value in asdict(self.machine[0]).items())


class Ladder:
    """Evaluates designs of an exploration.

    Parameters
    ----------
    spec : the exploration

    Raises
    ------
    VdlaError
        Where an objective or a limit needs what is not known for the board.
    """

    def __init__(self, spec: Spec):
        self.spec, self.board = spec, find_board(spec.board)
        self.energy = EnergyTable.load(spec.energy)
        #: What makes cells of designs, where that is wanted.
        self.silicon: Silicon | None = None
        #: The most of everything. The device's own capacity is a limit, too.
        self.limits = dict(spec.limits)
        if spec.in_cells:
            toggles = "toggles_uj" in spec.in_cells
            self.silicon = Silicon(spec.liberty, spec.macros, toggles)
        else:
            for name, most in self.board.device.capacity.items():
                self.limits[name] = min(spec.limits.get(name, most), most)
            self._check_bus()
        self.model: ResourceModel | None = None
        wanted = {*spec.objectives, *spec.limits}
        if {"lut", "ff", "time_us", "period_ns"} & wanted:
            self.model = shipped_model(self.board.name, self.board.device)
        if self.model is not None and {"time_us", "period_ns"} & wanted:
            self.model.mhz(spec.machine({})[0])  # what is missing is said before the work
        if {"bram", "dsp"} & wanted and not self.counts_rams:
            raise VdlaError(
                "board: expected one with an ECP5, whose block RAMs and multipliers are counted"
                f" without synthesis, got {spec.board!r}"
            )
        #: Multiply-accumulates of an image on the accelerator, by network.
        self._macs: dict[str, float] = {}
        self._records = Records.find_file(spec.records) or Records()
        #: Values of the first design, once it is measured.
        self.first: dict[str, float] = {}

    def _check_bus(self) -> None:
        first, _ = self.spec.machine({})
        self.board.check(first)
        for bits in self.spec.knobs.get("bus_bits", ()):
            self.board.check(replace(first, bus_bits=bits))

    @property
    def counts_rams(self) -> bool:
        """Whether the rules of ``resources.py`` hold for the board's device."""
        return self.board.device.family is ECP5

    def of_machine(self, design: Design) -> dict[str, float]:
        """What is known of the machine alone, without a run."""
        params, _ = design.machine
        found: dict[str, float] = {"scratchpad_bytes": params.scratchpad_bytes}
        if self.model is not None:
            found |= self.model.predict(params)
            if self.model.clock is not None:
                found["period_ns"] = 1000 / self.model.mhz(params)
            return found
        if self.counts_rams:
            found["dsp"] = multipliers(params, self.board.device)
            found["bram"] = core_rams(params)
        return found

    def marks(self) -> dict[str, str]:
        """How each value is known, by its name."""
        found = {"cycles": "exact", "dram_bytes": "exact"}
        found["energy_uj"] = f"exact counts, energies of {self.energy.name}"
        found["scratchpad_bytes"] = "counted"
        if self.silicon is not None:
            name = self.silicon.names[0]
            found["area_um2"] = f"counted in a netlist, {name}"
            found["toggles_uj"] = f"toggles of some cycles in RTL, energies of {name}"
        if self.counts_rams:
            around = "" if self.model is not None else ", of the core alone"
            found |= {"bram": f"counted{around}", "dsp": "counted"}
        if self.model is not None:
            beyond = self._beyond_samples(self.model)
            for name, (median, most) in self.model.error.items():
                found[name] = f"model of {self.model.count} samples, {_off(median, most)}{beyond}"
            if self.model.clock is not None:
                clock = self.model.clock
                known = f"model of {clock.count} placed samples, {_off(*clock.error)}{beyond}"
                found |= {"period_ns": known, "time_us": f"exact cycles, at the clock of a {known}"}
        return found

    def _beyond_samples(self, model: ResourceModel) -> str:
        """In which knobs machines of the exploration differ from all samples, in words."""
        found = dict[str, None]()
        for knobs in (
            {},
            *({k: value} for k, values in self.spec.knobs.items() for value in values),
        ):
            with suppress(VdlaError):  # not a machine with this value alone
                found |= dict.fromkeys(model.beyond(self.spec.machine(knobs)[0]))
        return f"; beyond its samples in {', '.join(found)}" if found else ""

    def over(self, values: Mapping[str, float]) -> float:
        """By how much values exceed limits, as parts of these and in all; 0 where they do not."""
        return sum(
            max(0.0, values[name] / most - 1)
            for name, most in self.limits.items()
            if name in values
        )

    # ---- bound

    def learn(self, design: Design, rows: Sequence[Row], cells: Row | None = None) -> None:
        """Take from what was measured of the first design its values, and each network's
        multiply-accumulates.
        """
        params, _ = design.machine
        for name, row in zip(self.spec.networks, rows, strict=True):
            covered = row["coverage"]["macs_on_accelerator"]
            self._macs[name] = covered / self.images(name, params)
        self.first = self.exact(design, rows, cells)

    def bound(self, design: Design) -> dict[str, float]:
        """Values that no run can be below: those of the machine, and the cycles in which tensor
        core and vector unit could do the multiply-accumulates; 0 where nothing is known.
        """
        params, _ = design.machine
        rate = params.peak_macs_per_cycle + params.peak_vector_macs_per_cycle
        cycles = sum(
            weight * self._macs.get(name, 0) / rate for name, weight in self.spec.networks.items()
        )
        found = self.of_machine(design) | {"cycles": cycles, "dram_bytes": 0.0, "energy_uj": 0.0}
        return _timed(found) | dict.fromkeys(self.spec.in_cells, 0.0)

    # ---- exact

    def points(self, design: Design) -> list[Point]:
        """What has to be measured of a design: a point for each network."""
        spec, knobs = self.spec, dict(design.knobs)
        lines = tuple(record.line() for record in self.records(design).trials)
        return [
            Point(
                name, spec.hw, spec.memory, knobs, design.params, design.memory,
                vthreads=design.vthreads, records=lines,
            )
            for name in spec.networks
        ]  # fmt: skip

    def records(self, design: Design) -> Records:
        """The records of a design's machine, as ``vdla.compile`` uses them."""
        return self._records.where(machine=machine_key(*design.machine))

    def images(self, network: str, params: HwParams) -> int:
        """Images that a run of a network takes: a file's has one, those of the package as many as
        the machine's batch.
        """
        return 1 if Path(network).is_file() else params.batch

    def exact(
        self, design: Design, rows: Sequence[Row], cells: Row | None = None
    ) -> dict[str, float]:
        """The values of a design from what was measured of its networks, in their order, and of it
        in standard cells; without the latter it has no values of :data:`~.spec.IN_CELLS`.

        Raises VdlaError where a network has no cycles or the design no cells, and where more of a
        network runs on the host than with the first design: the host's time is not counted.
        """
        params, _ = design.machine
        values = self.of_machine(design) | {"cycles": 0.0, "dram_bytes": 0.0, "energy_uj": 0.0}
        for (name, weight), row in zip(self.spec.networks.items(), rows, strict=True):
            if row.get("error"):
                raise VdlaError(f"{Path(name).name}: {row['error']}")
            covered = row["coverage"]["macs_on_accelerator"] / self.images(name, params)
            if covered < self._macs.get(name, 0):
                raise VdlaError(
                    f"{Path(name).name}: more of it runs on the host than with the first design:"
                    f" {covered:,.0f} MACs an image on the accelerator, not {self._macs[name]:,.0f}"
                )
            times = weight / self.images(name, params)
            values["cycles"] += times * row["cycles"]
            values["dram_bytes"] += times * sum(
                row["dram"][part] for part in ("read_bytes", "written_bytes")
            )
            values["energy_uj"] += times * sum(self.energy.picojoules(row, params).values()) / 1e6
        if cells is not None:
            if cells.get("error"):
                raise VdlaError(cells["error"])
            values |= {n: self.each_in_cells(n, design, cells)[0] for n in self.spec.in_cells}
        return _timed(values)

    def each_in_cells(self, name: str, design: Design, cells: Row) -> list[float]:
        """One of :data:`~.spec.IN_CELLS` under each library and table."""
        if name == "area_um2":
            return cells["areas_um2"]
        params, _ = design.machine
        times = [
            weight / self.images(network, params) for network, weight in self.spec.networks.items()
        ]
        return [
            sum(n * energy for n, energy in zip(times, each, strict=True))
            for each in cells["toggles_uj"]
        ]


def _timed(values: dict[str, float]) -> dict[str, float]:
    """The values with the time that their cycles take, where the clock is known."""
    if "period_ns" not in values:
        return values
    return values | {"time_us": values["cycles"] * values["period_ns"] / 1000}


def _off(median: float, most: float) -> str:
    return f"off by {100 * median:.1f} % in the median and {100 * most:.1f} % at most"
