"""The SDRAM of a board: RTL with its controller, SimPy model and loop agree in every cycle, and the
chip's rules are kept; what the controller reaches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Load, Store
from vdla.isa.memory import MEMORY_PRESETS, MemoryParams
from vdla.isa.params import PRESETS, HwParams
from vdla.isa.program import Program
from vdla.isa.sdram import PARTS, Part
from vdla.sim.model.core import simulate, simulate_cycles
from vdla.sim.rtl import driver
from vdla.sim.rtl.driver import RtlSimulator
from vdla.sim.verify.campaign import compare
from vdla.sim.verify.random_programs import random_program

ULX3S = MEMORY_PRESETS["ulx3s"]
PART = PARTS["ulx3s"]
#: Short queues, so that everything waits for everything; bursts of 64 bytes.
PARAMS = HwParams(
    block_in=4, block_out=4, inp_depth=64, wgt_depth=64, acc_depth=32, uop_depth=16, par_depth=8,
    tmp_depth=16, out_depth=64, max_burst_beats=8, queue_depth=3, fetch_depth=4,
    loads_in_flight=2, stores_in_flight=2,
)  # fmt: skip
#: Bytes from one row of a bank to the next, and from one bank to the next.
ROW_BYTES, BANK_BYTES = 4096, 1024


@pytest.fixture(scope="module")
def rtl() -> RtlSimulator:
    return RtlSimulator(PARAMS)


def program(*insns: Load | Store) -> Program:
    return Program(PARAMS, insns, {}, {"dram_bytes": 1 << 20})


def same(rtl: RtlSimulator, each: Program) -> int:
    """Bytes and cycles are the same everywhere; returns the cycles."""
    found = compare(each, each.dram_image(), ULX3S, rtl.run)
    assert found["first_divergence"] is None
    assert not found["byte_mismatches"] and not found["cycle_mismatches"]
    model = simulate(each, each.dram_image(), ULX3S, values=False)
    loop = simulate_cycles(each, ULX3S)
    assert (loop.starts, loop.ends, loop.counters) == (model.starts, model.ends, model.counters)
    return model.cycles


@pytest.mark.slow
def test_random_programs(rtl: RtlSimulator) -> None:
    for seed in range(20):
        same(rtl, random_program(PARAMS, seed))


@pytest.mark.slow
def test_rows_banks_and_turns_of_the_data_pins(rtl: RtlSimulator) -> None:
    """Transfers that meet in one bank, in several, or in one row; across the end of a row; in both
    directions at once."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        insns: list[Load | Store] = []
        for _ in range(30):
            row, bank = int(rng.integers(3)), int(rng.integers(4))
            address = 65536 + row * ROW_BYTES + bank * BANK_BYTES + 8 * int(rng.integers(128))
            x_size, rows = int(rng.integers(1, 9)), int(rng.integers(1, 4))
            if rng.random() < 0.4:
                insns.append(Store(base=0, dram_addr=address + 4 * ROW_BYTES, x_size=x_size,
                                   y_size=rows, y_stride=8 * int(rng.integers(700))))  # fmt: skip
            else:
                insns.append(Load(memory="wgt", base=0, dram_addr=address, x_size=x_size,
                                  y_size=rows, y_stride=8 * int(rng.integers(700))))  # fmt: skip
        same(rtl, program(*insns))


@pytest.mark.slow
def test_refreshes_in_between(rtl: RtlSimulator) -> None:
    """A program that lasts for many of them, which come when banks are busy, and when not."""
    loads = [
        Load(memory="wgt", base=0, dram_addr=65536 + 1040 * n, x_size=30, pad_bottom=n % 2)
        for n in range(60)
    ]
    assert same(rtl, program(*loads)) > 20 * PART.rules.refresh


@pytest.mark.slow
def test_the_chip_finds_what_it_must_not_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller keeps the rules of a part; a slower one is misused by it."""
    asked = driver.chip_flag(ULX3S.part)
    slower = replace(PART, open_ns=PART.open_ns + 3 * PART.clock_ns)
    monkeypatch.setattr(driver, "PARTS", {ULX3S.part: slower})
    assert driver.chip_flag(ULX3S.part) != asked
    each = random_program(PARAMS, 1)
    with pytest.raises(VdlaError, match=r"memory ulx3s was misused: clock .*too early after OPEN"):
        RtlSimulator(PARAMS).run(each, each.dram_image(), ULX3S)


def bus_share(*loads: Load) -> float:
    """Bytes loaded, of those that the chip's pins move in as many cycles."""
    params = PRESETS["8x8"]
    each = Program(params, loads, {}, {"dram_bytes": 1 << 20})
    cycles = simulate(each, each.dram_image(), ULX3S, values=False).cycles
    moved = sum(load.x_size for load in loads) * params.entry_bytes("wgt")
    return moved / (cycles * params.bus_bytes / ULX3S.cycles_per_beat)


def test_streams_fill_the_bus() -> None:
    """One stream, of 8 KiB for a LOAD; two in rows of the same bank, which take turns."""
    stream = [Load(memory="wgt", base=0, dram_addr=65536 + n * 8192, x_size=128) for n in range(32)]
    assert bus_share(*stream) > 0.96
    turns = [
        Load(memory="wgt", base=0, dram_addr=65536 + n % 2 * (1 << 18) + n * 128, x_size=4)
        for n in range(200)
    ]
    assert 0.78 < bus_share(*turns) < 0.9


def test_numbers_hold_at_every_clock_of_the_range() -> None:
    """Delays are those of the highest clock, refreshes those of the lowest."""
    part, rules = PART, PART.rules
    shortest_ns = 1000 / part.highest_mhz
    command_ns = shortest_ns / 2  # the command for rows is half a cycle behind
    assert rules.open_to_move * shortest_ns - command_ns >= part.open_ns
    assert rules.open_to_close * shortest_ns >= part.active_ns
    assert rules.close_to_open * shortest_ns >= part.close_ns
    assert (rules.open_to_close + rules.close_to_open) * shortest_ns >= part.cycle_ns
    assert rules.refresh_to_open * shortest_ns >= part.cycle_ns
    assert rules.write_to_close * shortest_ns - 2 * command_ns >= part.write_ns
    assert rules.refresh * 1000 / part.lowest_mhz <= 1000 * part.refresh_us
    assert replace(part, open_ns=40.0).rules.open_to_move > rules.open_to_move


def test_what_does_not_fit_is_said() -> None:
    each = Program(PARAMS, (), {}, {"dram_bytes": PART.size_bytes + 4096})
    message = "memory: expected a program of at most 33,554,432 bytes, which ulx3s has, got"
    with pytest.raises(VdlaError, match=message):
        simulate_cycles(each, ULX3S)
    with pytest.raises(VdlaError, match="expected a bus of 128 bits"):
        random = random_program(replace(PARAMS, bus_bits=128), 1)
        simulate(random, random.dram_image(), ULX3S)
    with pytest.raises(VdlaError, match=r"MemoryParams.part: expected one of ulx3s, got 'ddr9'"):
        MemoryParams(part="ddr9")
    with pytest.raises(VdlaError, match=r"MemoryParams.part: expected one of ulx3s, got 0"):
        MemoryParams(part=0)  # type: ignore[arg-type]
    with pytest.raises(VdlaError, match=r"MemoryParams.part: expected ulx3s with its own numbers"):
        MemoryParams(part="ulx3s")


def test_a_part_comes_back_from_json(tmp_path: Path) -> None:
    assert MemoryParams(**ULX3S.to_dict()) == ULX3S and ULX3S.label == "ulx3s"
    assert "part" not in MEMORY_PRESETS["vta"].to_dict()
    path = tmp_path / "memory.toml"
    path.write_text("\n".join(f"{k} = {v!r}" for k, v in ULX3S.to_dict().items()))
    assert MemoryParams.load(path) == ULX3S
    assert Part(column_bits=8).row_beats == PART.row_beats // 2
