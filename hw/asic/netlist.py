"""A netlist of standard cells and memories, from what yosys writes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from ...isa.errors import VdlaError
from ..fpga.sources import signal_sources
from .liberty import Cell, Library

#: The block of what is in the core itself, outside of its components.
CORE = "core"
#: Readers of a net, at most.
FANOUT = 16
_MEMORY = "$mem_v2"
#: Names that tools make.
_MADE = re.compile(r"\$|(^|\.)_\d+_$")

#: The bits of nets: numbers, or constants such as "0".
Bit = int | str


@dataclass(frozen=True)
class Instance:
    """A cell of the netlist: the ``cell`` that it is, and the net of each pin."""

    name: str
    cell: Cell
    nets: dict[str, Bit]

    def inputs(self) -> dict[str, Bit]:
        """The nets of the pins that it reads."""
        return self._pins("input")

    def outputs(self) -> dict[str, Bit]:
        """The nets of the pins that it drives."""
        return self._pins("output")

    def _pins(self, direction: str) -> dict[str, Bit]:
        pins = self.cell.pins
        return {pin: net for pin, net in self.nets.items() if pins[pin].direction == direction}


@dataclass(frozen=True)
class Port:
    """A port of a memory: the nets of its enable, address and data. A read that is ``clocked`` has
    its data in the next cycle, another one in the same.
    """

    enable: tuple[Bit, ...]
    address: tuple[Bit, ...]
    data: tuple[Bit, ...]
    clocked: bool = True


@dataclass(frozen=True)
class Memory:
    """A memory of the netlist."""

    name: str
    words: int
    bits: int
    reads: tuple[Port, ...]
    writes: tuple[Port, ...]


@dataclass(frozen=True)
class Netlist:
    """A core in cells of a library.

    Attributes
    ----------
    library : the cells
    instances, memories : what it consists of; names begin with their block's
    clock : the clock's net
    signals : by net, the names that it has in the design, as ``(signal, bit)``
    sources : the Amaranth line of signals and components, by name
    synthesised_um2 : the area of its cells as yosys sums it up, without :func:`with_buffers`
    """

    library: Library
    instances: list[Instance]
    memories: list[Memory]
    clock: Bit
    signals: dict[Bit, list[tuple[str, int]]]
    sources: dict[str, str]
    synthesised_um2: float

    @property
    def area_um2(self) -> float:
        """The area of all cells; memories are not among them."""
        return sum(instance.cell.area_um2 for instance in self.instances)

    def name_of(self, net: Bit, cell: str) -> str | None:
        """The signal that a net is, as the block of the cell that drives it calls it, if it does;
        of its names there the one of the outermost component.
        """
        block = block_of(cell)

        def order(one: tuple[str, int]) -> tuple[bool, bool, int, tuple[str, int]]:
            return block_of(one[0]) != block, bool(_MADE.search(one[0])), one[0].count("."), one

        named = min(self.signals.get(net, []), key=order, default=None)
        return None if named is None else f"{named[0]}[{named[1]}]"

    def loads(self) -> dict[Bit, list[tuple[Instance, str]]]:
        """The pins of cells that read each net."""
        found: dict[Bit, list[tuple[Instance, str]]] = {}
        for instance in self.instances:
            for pin, net in instance.inputs().items():
                found.setdefault(net, []).append((instance, pin))
        return found


def block_of(name: str) -> str:
    """The block of a cell or a memory: the component of the core that it is in."""
    inside = name.removeprefix("$flatten\\")
    return CORE if inside.startswith("$") or "." not in inside else inside.partition(".")[0]


def parse_netlist(module: dict[str, Any], library: Library, synthesised_um2: float) -> Netlist:
    """The netlist in a module that yosys writes as JSON. Raises VdlaError where logic is left for
    which the library has no cells.
    """
    instances, memories = [], []
    for name, cell in module["cells"].items():
        if cell["type"] == _MEMORY:
            memories.append(_memory(name, cell))
        elif cell["type"] == "$scopeinfo":
            continue
        elif cell["type"] not in library.cells:
            raise VdlaError(
                f"yosys failed: expected cells of the library {library.name}, got {cell['type']}; "
                "a library needs gates and a flip-flop"
            )
        else:
            nets = {pin: bits[0] for pin, bits in cell["connections"].items()}
            instances.append(Instance(name, library.cells[cell["type"]], nets))
    signals: dict[Bit, list[tuple[str, int]]] = {}
    for name, net in module["netnames"].items():
        if not net["hide_name"]:
            # As simulators write names that Verilog has to escape.
            plain = name.replace("\\", "")
            for place, bit in enumerate(net["bits"]):
                signals.setdefault(bit, []).append((plain, place))
    clock = module["ports"]["clk"]["bits"][0]
    sources = signal_sources(module)
    return Netlist(library, instances, memories, clock, signals, sources, synthesised_um2)


def with_buffers(netlist: Netlist) -> Netlist:
    """The netlist with trees of buffers where a net has more than :data:`FANOUT` readers; abc makes
    none for what comes from flip-flops, memories and other blocks. The clock's tree is not made.
    """
    buffer = _buffer(netlist.library)
    if buffer is None:
        return netlist
    cell, pin, output = buffer
    instances = {instance.name: instance for instance in netlist.instances}
    numbers = {net for one in netlist.instances for net in one.nets.values()} | {*netlist.signals}
    ports = (port for memory in netlist.memories for port in (*memory.reads, *memory.writes))
    numbers |= {net for port in ports for net in (*port.enable, *port.address, *port.data)}
    fresh = 1 + max((net for net in numbers if isinstance(net, int)), default=0)
    for net, loads in netlist.loads().items():
        if net == netlist.clock or not isinstance(net, int):
            continue
        readers = sorted(((one.name, pin) for one, pin in loads), key=lambda r: block_of(r[0]))
        while len(readers) > FANOUT:
            above = []
            for start in range(0, len(readers), FANOUT):
                group = readers[start : start + FANOUT]
                block = block_of(group[0][0])
                name = f"{'' if block == CORE else f'{block}.'}$buffer${fresh}"
                instances[name] = Instance(name, cell, {pin: net, output: fresh})
                for reader, its in group:
                    old = instances[reader]
                    instances[reader] = replace(old, nets={**old.nets, its: fresh})
                above.append((name, pin))
                fresh += 1
            readers = above
    return replace(netlist, instances=list(instances.values()))


def _buffer(library: Library) -> tuple[Cell, str, str] | None:
    """The buffer that is the fastest with :data:`FANOUT` readers, its input and output."""
    found = []
    for cell in library.cells.values():
        pins = {pin.direction: pin for pin in cell.pins.values()}
        given, out = pins.get("input"), pins.get("output")
        if len(cell.pins) != 2 or given is None or out is None:
            continue
        if out.function.strip("() ") == given.name and out.arcs:
            load = FANOUT * given.capacitance_pf
            delays = (table.at(0.0, load) for table in out.arcs[0].delay if table is not None)
            found.append((max(delays), cell.name, given.name, out.name))
    if not found:
        return None
    _, name, given_pin, out_pin = min(found)
    return library.cells[name], given_pin, out_pin


def _memory(name: str, cell: dict[str, Any]) -> Memory:
    value = {key: int(text, 2) for key, text in cell["parameters"].items() if set(text) <= {*"01"}}
    nets, address_bits, bits = cell["connections"], value["ABITS"], value["WIDTH"]

    def port(kind: str, number: int, enable_bits: int) -> Port:
        def part(what: str, width: int) -> tuple[Bit, ...]:
            return tuple(nets[f"{kind}_{what}"][number * width : (number + 1) * width])

        clocked = bool(value[f"{kind}_CLK_ENABLE"] >> number & 1)
        address, data = part("ADDR", address_bits), part("DATA", bits)
        return Port(part("EN", enable_bits), address, data, clocked)

    reads = tuple(port("RD", number, 1) for number in range(value["RD_PORTS"]))
    writes = tuple(port("WR", number, bits) for number in range(value["WR_PORTS"]))
    return Memory(name, value["SIZE"], bits, reads, writes)
