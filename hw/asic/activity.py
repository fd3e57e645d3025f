"""What the nets of a netlist do in cycles of which the registers are known.

Verilator computes the core's Verilog and writes the values of its signals at the end of each cycle.
The registers of the netlist are signals of the Verilog, so these give the values of all other nets,
by the functions of the cells that drive them. A net toggles at most once a cycle: what it does
before it settles is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache

import numpy as np

from ...isa.errors import VdlaError
from ..core.verilog import TOP
from .liberty import Cell
from .netlist import Bit, Instance, Netlist
from .timing import in_order, state_of

_TOKEN = re.compile(r"\s*([()!'^*&+|]|[A-Za-z_]\w*|[01])")
#: Operators of Liberty's functions by their strength, the weakest first, and in Python.
_OPERATORS = (("+|", "|"), ("*&", "&"), ("^", "^"))


class Samples:
    """The values of signals at the ends of some cycles.

    Attributes
    ----------
    cycles : the cycles, rising
    """

    def __init__(self, lines: Iterable[str], wanted: set[str]):
        """Read a VCD file of the core's Verilog; ``wanted`` are the signals that are kept, by their
        names in the core such as ``gemm.sum``."""
        self.cycles: list[int] = []
        self._bits: dict[str, list[int]] = {}
        names: dict[str, list[str]] = {}
        widths: dict[str, int] = {}
        scope: list[str] = []
        lines = iter(lines)
        for line in lines:
            match line.split():
                case ["$scope", _, name, *_]:
                    scope.append(name)
                case ["$upscope", *_]:
                    scope.pop()
                case ["$var", _, width, key, name, *_]:
                    name = ".".join([*scope, name]).removeprefix("TOP.").removeprefix(f"{TOP}.")
                    if name in wanted:
                        names.setdefault(key, []).append(name)
                        widths[key] = int(width)
                case ["$enddefinitions", *_]:
                    break
        rows = self._rows(lines, dict.fromkeys(names, "0"))
        for key, its in names.items():
            width = widths[key]
            values = "".join(row.rjust(width, "0") for row in rows[key])
            # The last bit of a value is the lowest; the first sample is the lowest bit of a wave.
            waves = [int(values[width - 1 - bit :: width][::-1] or "0", 2) for bit in range(width)]
            for name in its:
                self._bits[name] = waves

    def _rows(self, lines: Iterable[str], state: dict[str, str]) -> dict[str, list[str]]:
        rows: dict[str, list[str]] = {key: [] for key in state}

        def keep() -> None:
            for key, value in state.items():
                rows[key].append(value)

        for line in lines:
            if line.startswith("#"):
                if self.cycles:
                    keep()
                self.cycles.append(int(line[1:]) // 1000)
            elif line.startswith("b"):
                value, key = line[1:].split()
                if key in state:
                    state[key] = value
            elif line[0] in "01" and line.rstrip()[1:] in state:
                state[line.rstrip()[1:]] = line[0]
        if self.cycles:
            keep()
        return rows

    def wave(self, name: str, bit: int) -> int | None:
        """The values of a bit of a signal: bit n of the number is that of sample n. None where the
        file has no such signal.
        """
        bits = self._bits.get(name)
        return None if bits is None or bit >= len(bits) else bits[bit]

    @property
    def pairs(self) -> int:
        """Bit n says whether the samples n and n + 1 are of neighbouring cycles."""
        numbers = np.array(self.cycles)
        follows = "".join("1" if step == 1 else "0" for step in np.diff(numbers)[::-1])
        return int(follows or "0", 2)


def roots(netlist: Netlist) -> list[Bit]:
    """The nets that no cell computes within a cycle: registers, and of what memories show and of
    ports those that are read.
    """
    found = [state_of(one) for one in netlist.instances if one.cell.clock]
    read = [net for one in netlist.instances for net in one.inputs().values()]
    ports = (port for memory in netlist.memories for port in (*memory.reads, *memory.writes))
    read += [net for port in ports for net in (*port.enable, *port.address)]
    driven = {net for one in netlist.instances for net in one.outputs().values()}
    others = dict.fromkeys(net for net in read if isinstance(net, int) and net not in driven)
    return [*found, *(net for net in others if net != netlist.clock)]


def wanted_signals(netlist: Netlist) -> set[str]:
    """The signals that :func:`waves` looks for."""
    return {name for net in roots(netlist) for name, _ in netlist.signals.get(net, [])}


def waves(netlist: Netlist, samples: Samples) -> dict[Bit, int]:
    """The values of all nets at the samples.

    Raises VdlaError where a register is not among the signals.
    """
    known: dict[Bit, int] = {}
    for net in roots(netlist):
        found = (samples.wave(*name) for name in netlist.signals.get(net, []))
        wave = next((one for one in found if one is not None), None)
        if wave is None:
            names = ", ".join(name for name, _ in netlist.signals.get(net, [])) or "no name"
            raise VdlaError(f"toggles: expected the register {names} in the waveform, it lacks it")
        known[net] = wave
    return evaluate(netlist, known, len(samples.cycles))


def evaluate(netlist: Netlist, known: Mapping[Bit, int], samples: int) -> dict[Bit, int]:
    """The values of all nets, from those of registers, memories and ports."""
    mask = (1 << samples) - 1
    values: dict[Bit, int] = {"0": 0, "1": mask, "x": 0, **known}
    for flop in netlist.instances:
        if flop.cell.clock:
            _set_inverted(flop, values, mask)
    for one in in_order([one for one in netlist.instances if not one.cell.clock]):
        for pin, function in functions(one.cell):
            net = one.nets.get(pin)
            if net is not None:
                values[net] = function(values, one.nets) & mask
    return values


def _set_inverted(flop: Instance, values: dict[Bit, int], mask: int) -> None:
    """The other output of a flip-flop, where it has one."""
    state = state_of(flop)
    for net in flop.outputs().values():
        if net != state:
            values[net] = ~values[state] & mask


#: Computes an output of the values of nets, and of the nets of a cell's pins.
Function = Callable[[Mapping[Bit, int], Mapping[str, Bit]], int]


@cache
def _compiled(text: str) -> Function:
    return eval(f"lambda v, n: {python_function(text, 'v[n[{!r}]]')}")


def functions(cell: Cell) -> list[tuple[str, Function]]:
    """For each output, what computes it of the values of nets and of the nets of pins."""
    return [
        (pin.name, _compiled(pin.function)) for pin in cell.pins.values()
        if pin.direction == "output" and pin.function
    ]  # fmt: skip


def python_function(text: str, name: str) -> str:
    """A function of a Liberty file with the operators of Python, which are those of Verilog too.

    Parameters
    ----------
    text : such as ``!(A B + C')``
    name : what stands for a pin, with braces for its name
    """
    tokens, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise VdlaError(f"liberty: expected a function of pins, got {text!r}")
        tokens.append(match[1])
        at = match.end()

    def term() -> str:
        token = tokens.pop(0) if tokens else ""
        if token == "!":
            return f"(~{term()})"
        if token == "(":
            inner = level(0)
            if not tokens or tokens.pop(0) != ")":
                raise VdlaError(f"liberty: expected a function with all its brackets, got {text!r}")
        elif token in ("0", "1"):
            inner = f"v[{token!r}]"
        elif token and token not in "()!'^*&+|":
            inner = name.format(token)
        else:
            raise VdlaError(f"liberty: expected a function of pins, got {text!r}")
        while tokens and tokens[0] == "'":
            tokens.pop(0)
            inner = f"(~{inner})"
        return inner

    def level(strength: int) -> str:
        if strength == len(_OPERATORS):
            return term()
        signs, operator = _OPERATORS[strength]
        parts = [level(strength + 1)]
        while tokens:
            # Two terms side by side are a product.
            beside = operator == "&" and tokens[0] not in ")+|^*&"
            if not beside and tokens[0] not in signs:
                break
            if not beside:
                tokens.pop(0)
            parts.append(level(strength + 1))
        return parts[0] if len(parts) == 1 else f"({f' {operator} '.join(parts)})"

    made = level(0)
    if tokens:
        raise VdlaError(f"liberty: expected a function with all its brackets, got {text!r}")
    return made
