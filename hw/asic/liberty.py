"""Liberty files: the cells of a technology, with their area, capacitances, delays and energies.

What estimates need is read; the rest of a file is parsed and left out. All numbers are in ns, pF,
pJ, nW and um2 (the unit of areas is the file's own, which by convention is um2).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...isa.errors import VdlaError
from ...isa.text_files import read_text

#: The two values that an output can change to, in the order of all pairs here.
RISE, FALL = 0, 1
_TOKEN = re.compile(
    r'(?:\s|\\\n|/\*.*?\*/|//[^\n]*)*("(?:[^"\\]|\\.)*"|[{}();:,]|[^\s{}();:,"\\]+)', re.DOTALL
)
#: What the variables of tables are: slew of the input, load of the output, slew of the clock.
_AXES = {
    "input_net_transition": "slew", "input_transition_time": "slew",
    "constrained_pin_transition": "slew", "total_output_net_capacitance": "load",
    "related_pin_transition": "clock",
}  # fmt: skip
_PREFIXES = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9, "p": 1e-12, "f": 1e-15}
_UNIT = re.compile(r"([\d.]*)\s*([munpf]?)[sfFVW]")


@dataclass
class Group:
    """A group of a Liberty file: ``kind(arguments) { attributes and groups }``. A complex attribute
    has several values."""

    kind: str
    arguments: list[str]
    attributes: dict[str, list[str]] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)

    def each(self, *kinds: str) -> Iterator[Group]:
        """The groups of these kinds in it."""
        return (group for group in self.groups if group.kind in kinds)

    def text(self, name: str, default: str = "") -> str:
        """The value of a simple attribute."""
        return self.attributes.get(name, [default])[0]


@dataclass(frozen=True)
class Table:
    """Values over none, one or two axes; between and beyond its points it is linear.

    Attributes
    ----------
    axes : ``slew``, ``load`` or ``clock``, one for each index
    indices : the points of each axis, rising
    values : row by row; the last axis is the fastest
    """

    axes: tuple[str, ...]
    indices: tuple[tuple[float, ...], ...]
    values: tuple[float, ...]

    def at(self, slew_ns: float, load_pf: float = 0.0) -> float:
        """The value at a slew and a load; clocks are ideal and have none."""
        at = [slew_ns if a == "slew" else load_pf if a == "load" else 0.0 for a in self.axes]
        if not at:
            return self.values[0]
        row, part = _place(self.indices[0], at[0])
        values = self.values
        if len(at) == 1:
            following = values[min(row + 1, len(values) - 1)]
            return values[row] + part * (following - values[row])
        width = len(self.indices[1])
        column, across = _place(self.indices[1], at[1])
        right = min(column + 1, width - 1) - column
        first = row * width + column
        second = min(row + 1, len(self.indices[0]) - 1) * width + column
        upper = values[first] + across * (values[first + right] - values[first])
        lower = values[second] + across * (values[second + right] - values[second])
        return upper + part * (lower - upper)


def _place(index: tuple[float, ...], at: float) -> tuple[int, float]:
    """The point before a value, or the nearest pair's first, and the part of the way beyond."""
    if len(index) == 1:
        return 0, 0.0
    place = min(max(bisect_right(index, at) - 1, 0), len(index) - 2)
    return place, (at - index[place]) / (index[place + 1] - index[place])


#: A table for rising and one for falling outputs (or inputs, of constraints).
Pair = tuple[Table | None, Table | None]


@dataclass(frozen=True)
class Arc:
    """A way from a pin through a cell, or a constraint of a pin.

    Attributes
    ----------
    related : the pin it begins at, or the clock of a constraint
    sense : ``positive_unate``, ``negative_unate`` or ``non_unate``
    kind : the timing type, ``combinational`` unless the file says another
    delay : ns, or those that a constraint asks for
    slew : ns, of the output
    """

    related: str
    sense: str
    kind: str
    delay: Pair
    slew: Pair


@dataclass(frozen=True)
class Power:
    """Energy inside a cell, in pJ, when a pin changes; ``related`` may have caused it."""

    related: str
    energy: Pair


@dataclass(frozen=True)
class Pin:
    """A pin of a cell."""

    name: str
    direction: str
    capacitance_pf: float
    function: str
    arcs: tuple[Arc, ...]
    powers: tuple[Power, ...]


@dataclass(frozen=True)
class Cell:
    """A cell. A flip-flop has a pin for its ``clock``, and what it takes at its edge (``next``);
    ``state`` is the name of what it holds.
    """

    name: str
    area_um2: float
    leakage_nw: float
    pins: dict[str, Pin]
    clock: str = ""
    next: str = ""
    state: str = ""


@dataclass(frozen=True)
class Library:
    """The cells of a file, and the voltage that their energies are for."""

    name: str
    voltage: float
    cells: dict[str, Cell]


def load_liberty(path: str | Path) -> Library:
    """Read a Liberty file.

    Raises
    ------
    VdlaError
        For something else, for a file without flip-flops that D alone decides about, or with
        delays that are not tables.
    """
    library = _Parser(read_text(path), str(path)).library()
    model = library.text("delay_model", "table_lookup")
    if library.kind != "library" or model != "table_lookup":
        found = f"the delay model {model}" if library.kind == "library" else library.kind
        raise VdlaError(f"{path}: expected a library with tables of delays, got {found}")
    try:
        read = _Reader(library).library()
    except (ValueError, IndexError, KeyError, ZeroDivisionError) as error:
        raise VdlaError(f"{path}: expected the numbers of a Liberty file, got {error}") from None
    if not any(is_plain_flop(cell) for cell in read.cells.values()):
        raise VdlaError(
            f"{path}: expected a flip-flop that takes its pin D at the rising edge of a clock, "
            f"there is none among {len(read.cells)} cells; name a file of standard cells"
        )
    return read


def is_plain_flop(cell: Cell) -> bool:
    """Whether a cell is a flip-flop of a rising clock that takes a pin, and has no other input."""
    inputs = [pin.name for pin in cell.pins.values() if pin.direction == "input"]
    return bool(cell.clock) and sorted(inputs) == sorted([cell.clock, cell.next])


class _Parser:
    """Makes groups of the text of a file."""

    def __init__(self, text: str, path: str):
        self.text, self.path = text.rstrip(), path
        self.tokens: list[str] = []
        self.places: list[int] = []
        self.at = 0  # the next token
        end = 0
        while match := _TOKEN.match(self.text, end):
            self.tokens.append(match[1])
            self.places.append(match.start(1))
            end = match.end()
        self.is_whole = end == len(self.text)

    def library(self) -> Group:
        """The outermost group."""
        outer = Group("", [])
        stack = [outer]
        while self.at < len(self.tokens):
            name, sign = self._token(), self._token(1)
            if name == "}" and len(stack) > 1:
                stack.pop()
                self.at += 1
            elif name == ";":
                self.at += 1
            elif name in "{}();:,":
                raise self._fail("a name")
            elif sign == ":":
                self.at += 2
                stack[-1].attributes[name] = [self._value(name)]
            elif sign == "(":
                self.at += 2
                arguments = self._arguments(name)
                if self._token() == "{":
                    self.at += 1
                    group = Group(name, arguments)
                    stack[-1].groups.append(group)
                    stack.append(group)
                else:
                    stack[-1].attributes[name] = arguments
            else:
                self.at += 1
                raise self._fail(f"':' or '(' after {name}")
        if len(stack) > 1 or len(outer.groups) != 1 or not self.is_whole:
            raise self._fail("a library and the end of each of its groups")
        return outer.groups[0]

    def _token(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else ""

    def _value(self, name: str) -> str:
        """A simple attribute's; its semicolon may be left out at the end of a line."""
        words: list[str] = []
        while self._token() not in ("", ";", "{", "}") and not self._is_new_line():
            words.append(self._token().strip('"'))
            self.at += 1
        if not words:
            raise self._fail(f"a value of {name}")
        return " ".join(words)

    def _is_new_line(self) -> bool:
        return "\n" in self.text[self.places[self.at - 1] : self.places[self.at]]

    def _arguments(self, name: str) -> list[str]:
        found: list[str] = []
        while self._token() not in ("", "{", "}", ";", ")"):
            if self._token() != ",":
                found.append(self._token().strip('"'))
            self.at += 1
        if self._token() != ")":
            raise self._fail(f"the end of the arguments of {name}")
        self.at += 1
        return found

    def _fail(self, expected: str) -> VdlaError:
        place = self.places[self.at] if self._token() else len(self.text)
        line, found = self.text.count("\n", 0, place) + 1, self._token()
        return VdlaError(
            f"{self.path}: expected a Liberty file, with {expected} in line {line}, got "
            f"{repr(found) if found else 'its end'}"
        )


class _Reader:
    """Makes cells of the groups of a library."""

    def __init__(self, group: Group):
        self.group = group
        self.time = _unit(group.text("time_unit", "1ns")) / 1e-9
        amount, unit = group.attributes.get("capacitive_load_unit", ["1", "pf"])
        self.capacitance = float(amount) * _unit("1" + unit.lower()) / 1e-12
        volts = _unit(group.text("voltage_unit", "1V"))
        self.energy = volts**2 * self.capacitance
        self.leakage = _unit(group.text("leakage_power_unit", "1nW")) / 1e-9
        self.voltage = float(group.text("nom_voltage", "0")) * volts
        self.templates = {
            template.arguments[0]: template
            for template in group.each("lu_table_template", "power_lut_template")
        }

    def library(self) -> Library:
        """All cells that synthesis may use."""
        cells = [self._cell(cell) for cell in self.group.each("cell")
                 if cell.text("dont_use") != "true"]  # fmt: skip
        if not self.voltage > 0:
            raise ValueError("no nom_voltage")
        name = self.group.arguments[0] if self.group.arguments else ""
        return Library(name, self.voltage, {cell.name: cell for cell in cells})

    def _cell(self, group: Group) -> Cell:
        pins = {}
        for pin in group.each("pin"):
            for name in pin.arguments:
                pins[name] = self._pin(name, pin)
        leakage = float(group.text("cell_leakage_power", "0")) * self.leakage
        flop = next(group.each("ff"), None)
        clock = following = state = ""
        if flop is not None:
            clock, following = (
                name if name in pins else ""
                for name in (flop.text(key).strip("() ") for key in ("clocked_on", "next_state"))
            )
            state = flop.arguments[0]
        area = float(group.text("area", "0"))
        return Cell(group.arguments[0], area, leakage, pins, clock, following, state)

    def _pin(self, name: str, group: Group) -> Pin:
        capacitance = float(group.text("capacitance", "0"))
        edges = [float(group.text(f"{edge}_capacitance", str(capacitance)))
                 for edge in ("rise", "fall")]  # fmt: skip
        return Pin(
            name, group.text("direction"), sum(edges) / 2 * self.capacitance,
            group.text("function"),
            tuple(arc for timing in group.each("timing") for arc in self._arcs(timing)),
            tuple(power for one in group.each("internal_power") for power in self._powers(one)),
        )  # fmt: skip

    def _arcs(self, group: Group) -> Iterator[Arc]:
        kind = group.text("timing_type", "combinational")
        constraint = kind.startswith("setup")
        names = ("rise_constraint", "fall_constraint") if constraint else ("cell_rise", "cell_fall")
        delay = self._pair(group, names, self.time)
        slew = self._pair(group, ("rise_transition", "fall_transition"), self.time)
        if delay != (None, None):
            for related in group.text("related_pin").split():
                yield Arc(related, group.text("timing_sense", "non_unate"), kind, delay, slew)

    def _powers(self, group: Group) -> Iterator[Power]:
        energy = self._pair(group, ("rise_power", "fall_power"), self.energy)
        if energy == (None, None):
            both = self._pair(group, ("power", "power"), self.energy)
            energy = both
        if energy != (None, None):
            yield Power(group.text("related_pin"), energy)

    def _pair(self, group: Group, names: tuple[str, str], scale: float) -> Pair:
        first, second = (
            next((self._table(table, scale) for table in group.each(name)), None) for name in names
        )
        return first, second

    def _table(self, group: Group, scale: float) -> Table:
        template = self.templates.get(group.arguments[0] if group.arguments else "")
        values = tuple(scale * number for row in group.attributes["values"] for number in _row(row))
        axes: list[str] = []
        indices: list[tuple[float, ...]] = []
        for n in (1, 2, 3):
            variable = template.text(f"variable_{n}") if template is not None else ""
            if not variable:
                break
            axis = _AXES.get(variable)
            if axis is None or n == 3:
                raise ValueError(f"the variable {variable} of {group.kind}")
            index = group.attributes.get(f"index_{n}") or template.attributes[f"index_{n}"]  # type: ignore[union-attr]
            unit = self.capacitance if axis == "load" else self.time
            axes.append(axis)
            indices.append(tuple(unit * number for number in _row(index[0])))
        size = 1
        for index in indices:
            size *= len(index)
            if list(index) != sorted(set(index)):
                raise ValueError(f"an index of {group.kind} that does not rise")
        if len(values) != size:
            raise ValueError(f"{len(values)} values of {group.kind} where {size} are due")
        return Table(tuple(axes), tuple(indices), values)


def _row(text: str) -> list[float]:
    return [float(number) for number in text.replace("\\", " ").replace(",", " ").split()]


def _unit(text: str) -> float:
    """A unit such as ``1ns`` or ``10pf`` in s, F, V or W."""
    match = _UNIT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"the unit {text!r}")
    return float(match[1] or 1) * _PREFIXES[match[2]]
