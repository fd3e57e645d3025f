"""Where multipliers and block RAMs are put: lane by lane, each in a place of its own."""

from __future__ import annotations

import re

from vdla.hw.fpga.devices import ECP5_85F
from vdla.hw.fpga.floorplan import place_lanes, place_other_memories
from vdla.isa.params import HwParams

assert ECP5_85F.nextpnr is not None
SITES = ECP5_85F.nextpnr
LUT = {"A": "input", "B": "input", "C": "input", "D": "input", "Z": "output"}
FF = {"CLK": "input", "DI": "input", "Q": "output"}
MULTIPLIER = {"A0": "input", "P0": "output", "P1": "output"}


class Netlist:
    """A module as yosys writes it, cell by cell."""

    def __init__(self) -> None:
        self.module: dict = {"cells": {}, "netnames": {}}
        self._bits = 10

    def bit(self, name: str = "") -> int:
        self._bits += 1
        if name:
            self.module["netnames"][name] = {"bits": [self._bits]}
        return self._bits

    def cell(self, name: str, kind: str, directions: dict[str, str], **ports: int) -> None:
        self.module["cells"][name] = {
            "type": kind, "port_directions": {p: directions[p] for p in ports}, "attributes": {},
            "connections": {port: [bit] for port, bit in ports.items()},
        }  # fmt: skip

    def multiplier(self, name: str, register: str, tables: int = 0) -> None:
        """A product, and the register that it ends in behind some tables."""
        low, high = self.bit(), self.bit()
        self.cell(name, "MULT18X18D", MULTIPLIER, A0=self.bit(), P0=low, P1=high)
        for n in range(tables):
            following = self.bit()
            self.cell(f"{name}_table{n}", "LUT4", LUT, A=low, B=self.bit(), Z=following)
            low = following
        self.cell(f"{name}_ff", "TRELLIS_FF", FF, CLK=1, DI=low, Q=self.bit(register))

    def memory(self, name: str) -> None:
        self.cell(name, "DP16KD", {"DOA0": "output"}, DOA0=self.bit())

    def places(self) -> dict[str, tuple[int, int]]:
        """Columns and rows of what was given a place; places are used once."""
        bels = {n: c["attributes"].get("BEL") for n, c in self.module["cells"].items()}
        bels = {name: bel for name, bel in bels.items() if bel}
        assert len(set(bels.values())) == len(bels)
        numbers = {n: re.match(r"X(\d+)/Y(\d+)/", bel) for n, bel in bels.items()}
        return {n: (int(match[1]), int(match[2])) for n, match in numbers.items() if match}


def _core(lanes: int, of_vector: int, of_gemm: int, passes: int = 1) -> Netlist:
    params = HwParams(block_in=lanes, block_out=lanes, vector_passes=passes)
    netlist = Netlist()
    for n in range(max(of_vector, of_gemm)):  # all lanes in turn, as in a real netlist
        for lane in range(lanes):
            if n < of_vector and lane < params.vector_lanes:
                names = (f"requantizer.part{n:02}", f"operator.x{n:02}$41", f"y{n:02}$43")
                register = f"core.vector.lane_{lane}.{names[n % 3]}"
                netlist.multiplier(f"v{lane}.{n}", register, n % 3)
            if n < of_gemm:
                netlist.multiplier(f"g{lane}.{n}", f"core.gemm.product_0_{lane}_{n}")
    for port in range(2):
        for n in range(2 * lanes):
            netlist.memory(f"core.acc.storage.{port}.{n}")
    for lane in range(params.vector_lanes):
        netlist.memory(f"core.vector.lane_{lane}.look_up.table.0.0")
    netlist.memory("core.inp.storage.0.0")
    netlist.multiplier("other", "core.load.product")
    place_lanes(netlist.module, params, SITES.multipliers, SITES.memories)
    return netlist


def _lane(name: str) -> str:
    return name.split(".")[0][1:]


def test_lanes_stand_together() -> None:
    places = _core(lanes=8, of_vector=7, of_gemm=8).places()
    multipliers = {name: site for name, site in places.items() if name[0] in "vg"}
    assert len(multipliers) == 8 * 15
    for lane in range(8):
        sites = [site for name, site in multipliers.items() if _lane(name) == str(lane)]
        columns, rows = zip(*sites, strict=True)
        assert len(set(rows)) == 1 and max(columns) - min(columns) < 36
        slices = [f"core.acc.storage.{port}.{2 * lane + n}" for port in range(2) for n in range(2)]
        slices.append(f"core.vector.lane_{lane}.look_up.table.0.0")
        for x, y in (places[name] for name in slices):
            assert min(columns) - 9 <= x <= max(columns) + 9 and abs(y - rows[0]) <= 24


def test_lanes_of_one_lane_of_the_vector_unit_stand_together() -> None:
    places = _core(lanes=16, of_vector=7, of_gemm=2, passes=2).places()
    multipliers = {name: site for name, site in places.items() if name[0] in "vg"}
    assert len(multipliers) == 8 * 7 + 16 * 2
    for lane in range(8):
        of_lane = [f"v{lane}.", f"g{2 * lane}.", f"g{2 * lane + 1}."]
        names = [name for name in multipliers if name.startswith(tuple(of_lane))]
        assert len(names) == 7 + 2 * 2
        names += [f"core.acc.storage.0.{2 * element}" for element in (2 * lane, 2 * lane + 1)]
        columns, rows = zip(*(places[name] for name in names), strict=True)
        assert max(columns) - min(columns) <= 36 and max(rows) - min(rows) <= 24


def test_multipliers_of_a_lane_are_in_the_order_of_their_inputs() -> None:
    places = _core(lanes=4, of_vector=0, of_gemm=12).places()
    columns = [places[f"g0.{n}"][0] for n in range(12)]
    assert columns == sorted(columns)


def test_what_belongs_to_no_lane_is_left_to_the_placer() -> None:
    places = _core(lanes=4, of_vector=3, of_gemm=2).places()
    assert "other" not in places and "core.inp.storage.0.0" not in places


def test_other_memories_stand_in_the_middle() -> None:
    netlist = _core(lanes=4, of_vector=3, of_gemm=2)
    before = netlist.places()
    for n in range(20):
        netlist.memory(f"other.{n}")
    place_other_memories(netlist.module, SITES.memories)
    after = netlist.places()
    assert {name: after[name] for name in before} == before
    new = sorted(set(after) - set(before))
    assert new == ["core.inp.storage.0.0", *sorted(f"other.{n}" for n in range(20))]
    columns, _ = zip(*(before[name] for name in before if name[0] in "vg"), strict=True)
    middle = sum(columns) / len(columns)
    assert all(abs(after[name][0] - middle) < 60 for name in new)
    for n in range(SITES.memories.count - len([n for n in after if n[0] in "co"])):
        netlist.memory(f"further.{n}")
    place_other_memories(netlist.module, SITES.memories)
    assert len(netlist.places()) > len(after)  # all of them have places of their own, still
    assert all("BEL" in c["attributes"] for c in netlist.module["cells"].values()
               if c["type"] == "DP16KD")  # fmt: skip


def test_a_device_can_be_full() -> None:
    """Lanes that do not fit in rows go on in the next."""
    places = _core(lanes=4, of_vector=7, of_gemm=32).places()
    assert len([name for name in places if name[0] in "vg"]) == 156 == SITES.multipliers.count


def test_a_design_without_lanes() -> None:
    netlist = Netlist()
    netlist.memory("buffer")
    place_lanes(netlist.module, HwParams(), SITES.multipliers, SITES.memories)
    assert netlist.places() == {}
