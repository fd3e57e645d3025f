"""Places the multipliers and block RAMs of a core beside one another, lane by lane.

A device has multipliers and block RAMs in a few rows, far from one another. A placer that starts
from forces on single cells spreads the multipliers of a lane over the whole device, and their wires
with them. If it is given their places, it finds better places for the logic in less time (figures:
ADR 12).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...isa.params import HwParams

#: Names of the registers of a product. In the vector unit they tell the lane, and which product.
#: Wires from one part of the lane to the next have the same name, some of them with a number behind
#: it, and synthesis may keep any of these names. In the tensor core they tell the lane, and the
#: input.
_PRODUCT = re.compile(
    r"\.vector\.lane_(\d+)\.(?:[a-z]+\.)?([a-z]+\d*)(?:\$\d+)?$"
    r"|\.gemm\.product_\d+_(\d+)_(\d+)$"
)
#: Block RAMs of a lane of the vector unit.
_OWN = re.compile(r"\.vector\.lane_(\d+)\.look_up\.")
#: Block RAMs that hold some bits of every entry: memory and port, and which of its bits.
_SLICE = re.compile(r"\.((?:acc|tmp|par|wgt)\.storage\.\d+)\.(\d+)$")
#: The most lookup tables in a row between a multiplier and the registers behind it.
_DEPTH = 3

#: A place, as nextpnr names it: column, row, name of the element.
Site = tuple[int, int, str]


class Product(NamedTuple):
    """The product that a multiplier computes: whether it is one of the tensor core, and which of
    its lane's products it is, by input or by name.
    """

    of_weight: bool
    which: int | str


@dataclass(frozen=True)
class Sites:
    """Where a device has elements of a kind.

    Attributes
    ----------
    rows : from top to bottom
    blocks : columns where groups of them begin
    elements : those of a group: columns from its first, and name
    """

    rows: tuple[int, ...]
    blocks: tuple[int, ...]
    elements: tuple[tuple[int, str], ...]

    @property
    def count(self) -> int:
        return len(self.rows) * len(self.blocks) * len(self.elements)

    def in_row(self, row: int) -> list[Site]:
        """The sites of a row, from left to right."""
        return [(x + dx, row, name) for x in self.blocks for dx, name in self.elements]


def place_lanes(
    netlist: dict[str, Any], params: HwParams, multipliers: Sites, memories: Sites
) -> None:
    """Give the multipliers and block RAMs of lanes their places, as attributes of the cells of
    ``netlist``, a module in yosys' JSON. Others are left to the placer. Lanes of the tensor core
    are beside the lane of the vector unit that has their elements.
    """
    cells = netlist["cells"]
    by_lane = defaultdict(list)
    for lane, product, name in _multipliers_of_lanes(netlist):
        its = lane // params.vector_passes if product.of_weight else lane
        by_lane[its].append((product, name))
    lanes = sorted(by_lane)
    places = _beside(
        [len(by_lane[lane]) for lane in lanes], [multipliers.in_row(r) for r in multipliers.rows]
    )
    free = [site for row in memories.rows for site in memories.in_row(row)]
    slices = _slices_of_lanes(cells, params)
    for lane, sites in zip(lanes, places, strict=True):
        weights = []
        for (product, name), site in zip(sorted(by_lane[lane]), sites, strict=True):
            _place(cells[name], site)
            weights += [site] if product.of_weight else []
        for memory, share, name in slices[lane]:
            # Each weight goes to a multiplier of its own.
            its_own = memory.startswith("wgt") and weights
            own = [weights[int(share * len(weights))]] if its_own else sites
            nearest = min(free, key=lambda site, own=own: _distance(site, own))
            free.remove(nearest)
            _place(cells[name], nearest)


def place_other_memories(netlist: dict[str, Any], memories: Sites) -> None:
    """Give places to all block RAMs that have none yet, for a placer that does not find them: free
    ones near the middle of the multipliers, as these are read by all lanes. Every second one stays
    free as long as there are enough, since wires to block RAMs beside one another do not end.
    """
    used = {cell["attributes"]["BEL"] for cell in _placed(netlist, "DP16KD")}
    free = [site for row in memories.rows for site in memories.in_row(row)]
    free = [site for site in free if _bel(site) not in used]
    around = [_site(cell["attributes"]["BEL"]) for cell in _placed(netlist, "MULT18X18D")]
    around = around or list(free)
    free.sort(key=lambda site: _distance(site, around))
    cells = [cell for _, cell in sorted(netlist["cells"].items()) if cell["type"] == "DP16KD"]
    left = [cell for cell in cells if "BEL" not in cell["attributes"]]
    sites = free[:: 2 if 2 * len(left) <= len(free) else 1]
    for cell, site in zip(left, sites, strict=False):
        _place(cell, site)


def _placed(netlist: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """The cells of a kind that have a place."""
    cells = netlist["cells"].values()
    return [cell for cell in cells if cell["type"] == kind and "BEL" in cell["attributes"]]


def _multipliers_of_lanes(netlist: dict[str, Any]) -> Iterator[tuple[int, Product, str]]:
    """For each multiplier the lane whose registers take its product, the product, and the name of
    the multiplier.
    """
    names = defaultdict(list)
    for name, net in netlist["netnames"].items():
        for bit in net["bits"]:
            names[bit].append(name)
    readers = defaultdict(list)
    for cell in netlist["cells"].values():
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] == "input":
                for bit in bits:
                    readers[bit].append(cell)

    def registers(bit: int, depth: int = _DEPTH):
        """The bits of registers that a bit reaches."""
        for cell in readers[bit]:
            if cell["type"] == "TRELLIS_FF" and bit in cell["connections"]["DI"]:
                yield from cell["connections"]["Q"]
            elif cell["type"] == "LUT4" and depth:
                yield from registers(cell["connections"]["Z"][0], depth - 1)

    for cell_name, cell in netlist["cells"].items():
        if cell["type"] != "MULT18X18D":
            continue
        outputs = [
            b for p, b in cell["connections"].items() if cell["port_directions"][p] != "input"
        ]
        found = (
            _PRODUCT.search(name)
            for bits in outputs
            for bit in bits
            for register in registers(bit)
            for name in names[register]
        )
        votes = Counter(match.groups() for match in found if match)
        if votes:
            (vector_lane, of_vector, core_lane, of_core), _ = votes.most_common(1)[0]
            product = Product(False, of_vector) if of_core is None else Product(True, int(of_core))
            yield int(core_lane or vector_lane), product, cell_name


def _slices_of_lanes(
    cells: dict[str, Any], params: HwParams
) -> dict[int, list[tuple[str, float, str]]]:
    """Block RAMs by the lane of the vector unit whose part of an entry they hold: memory, how far
    into that part they begin (0 to 1), and name. That of its table comes first.
    """
    memories = defaultdict(list)
    for name, cell in cells.items():
        match = _SLICE.search(name)
        if match and cell["type"] == "DP16KD":
            memories[match[1]].append((int(match[2]), name))
    held = defaultdict(list)
    for name, cell in cells.items():
        match = _OWN.search(name)
        if match and cell["type"] == "DP16KD":
            held[int(match[1])].append(("table", 0.0, name))
    for memory, slices in memories.items():
        for place, (_, name) in enumerate(sorted(slices)):
            element, share = divmod(place * params.lanes / len(slices), 1)
            held[int(element) // params.vector_passes].append((memory, share, name))
    return held


def _beside(sizes: list[int], rows: list[list[Site]]) -> list[list[Site]]:
    """Sites for groups of these sizes: the same number of groups in the middle of each row, or, if
    they do not fit, one group after another through all rows.
    """
    each = -(-len(sizes) // len(rows))
    wide = max(sizes, default=0)
    if each * wide <= len(rows[0]):
        begin = (len(rows[0]) - each * wide) // 2
        starts = [(n // each, begin + n % each * wide) for n in range(len(sizes))]
        return [rows[row][x : x + size] for (row, x), size in zip(starts, sizes, strict=True)]
    # To and fro, so that a group that goes on in the next row stays together.
    path = [site for n, row in enumerate(rows) for site in (row[::-1] if n % 2 else row)]
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [path[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _distance(site: Site, others: list[Site]) -> float:
    """The distance from a site to the middle of others."""
    x, y = (sum(each[axis] for each in others) / len(others) for axis in (0, 1))
    return abs(site[0] - x) + abs(site[1] - y)


def _place(cell: dict[str, Any], site: Site) -> None:
    cell["attributes"]["BEL"] = _bel(site)


def _bel(site: Site) -> str:
    """A site as nextpnr writes it."""
    x, y, name = site
    return f"X{x}/Y{y}/{name}"


def _site(bel: str) -> Site:
    """What :func:`_bel` makes of a site, back."""
    x, y, name = bel.split("/", 2)
    return int(x[1:]), int(y[1:]), name
