"""Energy by what toggled.

A net that changes takes C V^2 / 2, C being the pins that read it, and what the library's tables say
of the cell that drives it and of the pins that read it, at the net's load and the slews that timing
found. The clock's nets change twice a cycle, without a tree of buffers. A macro takes the table's
energy for every write, and for every read of another address than in the cycle before; a read of
the same address is held, which costs nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from .activity import Samples, waves
from .liberty import FALL, RISE, Pair
from .macros import Tiled
from .netlist import Bit, Instance, Netlist, block_of
from .timing import Node, Timing


@dataclass
class BlockEnergy:
    """Mean energy of a block in a cycle, in pJ: of nets that switch, inside cells, of the clock's
    pins, of macros; and the leakage of its cells, in nW.
    """

    switching_pj: float = 0.0
    internal_pj: float = 0.0
    clock_pj: float = 0.0
    macros_pj: float = 0.0
    leakage_nw: float = 0.0

    @property
    def pj(self) -> float:
        """All but leakage, which takes time."""
        return self.switching_pj + self.internal_pj + self.clock_pj + self.macros_pj


@dataclass
class Accesses:
    """What a memory's ports did, a cycle: words written, read, and read again from the same
    address.
    """

    writes: float = 0.0
    reads: float = 0.0
    held: float = 0.0


@dataclass(frozen=True)
class Energy:
    """The energy of a cycle, on average over some.

    Attributes
    ----------
    cycles : how many cycles were looked at
    blocks : by block
    accesses : by memory
    toggles : changes of nets in a cycle, but for the clock's
    """

    cycles: int
    toggles: float
    blocks: dict[str, BlockEnergy] = field(default_factory=lambda: defaultdict(BlockEnergy))
    accesses: dict[str, Accesses] = field(default_factory=dict)

    @property
    def pj(self) -> float:
        """The energy of a cycle without leakage."""
        return sum(block.pj for block in self.blocks.values())

    @property
    def leakage_nw(self) -> float:
        """The leakage of all cells."""
        return sum(block.leakage_nw for block in self.blocks.values())

    def microjoules(self, cycles: int, mhz: float) -> float:
        """The energy of so many cycles like these at a clock, with leakage."""
        return (self.pj + self.leakage_nw * 1e-3 / mhz) * cycles * 1e-6

    def rows(self, mhz: float) -> list[dict[str, Any]]:
        """For every block the energy of a cycle in pJ, and the power at a clock in mW."""
        rows = [
            {"block": name, **vars(block), "pj": block.pj,
             "mw": block.pj * mhz * 1e-3 + block.leakage_nw * 1e-6}
            for name, block in self.blocks.items()
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (-row["mw"], row["block"]))


def toggle_weights(netlist: Netlist, timing: Timing) -> dict[Bit, tuple[float, float]]:
    """For each net but the clock's, what a toggle takes in pJ: to charge it, and inside the cells
    at its ends.
    """
    inside: dict[Bit, float] = defaultdict(float)
    for one in netlist.instances:
        for pin, net in one.nets.items():
            if net != netlist.clock:
                inside[net] += _pin_energy(one, pin, timing)
    half = netlist.library.voltage**2 / 2
    nets = {*inside, *timing.load_pf} - {netlist.clock}
    return {net: (half * timing.load_pf.get(net, 0.0), inside[net]) for net in nets}


def energy_of(netlist: Netlist, memories: list[Tiled], timing: Timing, samples: Samples) -> Energy:
    """The energy of a cycle of the cycles that are sampled with those after them.

    Raises VdlaError where registers of the netlist are not among the samples' signals.
    """
    values, pairs = waves(netlist, samples), samples.pairs
    cycles = pairs.bit_count()
    changes = {net: ((wave ^ wave >> 1) & pairs).bit_count() for net, wave in values.items()}
    weights = toggle_weights(netlist, timing)
    counted = sum(changes.get(net, 0) for net in weights)
    found = Energy(cycles, counted / max(cycles, 1))
    drivers = {net: one.name for one in netlist.instances for net in one.outputs().values()}
    for memory in netlist.memories:
        drivers |= {net: memory.name for port in memory.reads for net in port.data}
    for net, (charge, inside) in weights.items():
        block = found.blocks[block_of(drivers.get(net, ""))]
        rate = changes.get(net, 0) / max(cycles, 1)
        block.switching_pj += rate * charge
        block.internal_pj += rate * inside
    _add_clock(netlist, found)
    for tiled in memories:
        accesses = _accesses(tiled, values, pairs, max(cycles, 1))
        found.accesses[tiled.memory.name] = accesses
        energy = tiled.energy_pj(accesses.reads, accesses.writes)
        found.blocks[block_of(tiled.memory.name)].macros_pj += energy
    return found


def _add_clock(netlist: Netlist, found: Energy) -> None:
    """The clock's pins, which rise and fall in each cycle, and leakage."""
    square = netlist.library.voltage**2
    for one in netlist.instances:
        block = found.blocks[block_of(one.name)]
        block.leakage_nw += one.cell.leakage_nw
        if one.cell.clock:
            pin = one.cell.pins[one.cell.clock]
            block.clock_pj += square * pin.capacitance_pf
            for power in pin.powers:
                block.clock_pj += 2 * _mean(power.energy, 0.0, 0.0)


def _pin_energy(one: Instance, pin: str, timing: Timing) -> float:
    """What a toggle of a pin takes inside its cell: the mean of what may have caused it."""
    powers = one.cell.pins[pin].powers
    if not powers:
        return 0.0
    load = timing.load_pf.get(one.nets[pin], 0.0)
    total = 0.0
    for power in powers:
        cause = one.nets.get(power.related or pin)
        total += _mean(power.energy, 0.0 if cause is None else _slew(cause, timing), load)
    return total / len(powers)


def _mean(energy: Pair, slew_ns: float, load_pf: float) -> float:
    """The mean of rising and falling."""
    return sum(0.0 if table is None else table.at(slew_ns, load_pf) for table in energy) / 2


def _slew(net: Bit, timing: Timing) -> float:
    """The mean slew of a net; none for what no register brings about."""
    known = [timing.arrivals.get(Node(net, edge)) for edge in (RISE, FALL)]
    slews = [arrival.slew_ns for arrival in known if arrival is not None]
    return sum(slews) / len(slews) if slews else 0.0


def _accesses(tiled: Tiled, values: dict[Bit, int], pairs: int, cycles: int) -> Accesses:
    """Of the later cycle of each pair."""
    found = Accesses()
    for port in tiled.memory.writes:
        enabled = 0
        for net in {*port.enable}:
            enabled |= values.get(net, 0)
        found.writes += (enabled >> 1 & pairs).bit_count() / cycles
    for port in tiled.memory.reads:
        enabled = values.get(port.enable[0], 0) >> 1 & pairs
        moved = 0
        for net in port.address:
            wave = values.get(net, 0)
            moved |= wave ^ wave >> 1
        reads = (moved & enabled).bit_count() / cycles
        found.reads += reads
        found.held += enabled.bit_count() / cycles - reads
    return found
