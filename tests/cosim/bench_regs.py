"""Register file: random accesses against the register map."""

from __future__ import annotations

import random

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge
from vdla.cosim import parameter, reset
from vdla.isa.regmap import CONTROL_RESET, CONTROL_START, COUNTERS, OFFSETS, REGISTERS

#: Unit and cause that a counter is of.
COUNTED = {name: (u, c) for u, names in enumerate(COUNTERS) for c, name in enumerate(names)}
READ = [r.name for r in REGISTERS if r.access == "r" and r.name != "config_hash"]
#: What each port shows: a register, or whatever counter of its unit is asked for.
SHOWN = {name: f"value_{name}" for name in READ if name not in COUNTED}
SHOWN |= {unit: f"values_of__{unit}" for unit in range(len(COUNTERS))}
KEPT = [r.name for r in REGISTERS if r.access == "rw"]
NOWHERE = max(OFFSETS.values()) + 4


@cocotb.test()
async def behaves_as_the_register_map(dut) -> None:
    rng = random.Random(7)
    shown, kept = dict.fromkeys(SHOWN, 0), dict.fromkeys(KEPT, 0)
    constant = {"config_hash": int(parameter("hash"), 16)}
    ports = ("port__addr", "port__write", "port__wdata")
    await reset(dut, *ports, *SHOWN.values())
    names = {offset: name for name, offset in OFFSETS.items()}
    control = None  # what the last cycle wrote to it
    for _ in range(3000):
        for name in rng.sample(list(SHOWN), 2):
            shown[name] = rng.getrandbits(32)
            getattr(dut, SHOWN[name]).value = shown[name]
        address = rng.choice((rng.choice(list(names)), OFFSETS["control"], NOWHERE))
        if rng.random() < 0.2:
            address = OFFSETS[rng.choice(KEPT)]
        write = int(rng.random() < 0.4)
        data = rng.choice((CONTROL_START, CONTROL_RESET, rng.getrandbits(32)))
        dut.port__addr.value, dut.port__write.value, dut.port__wdata.value = address, write, data
        await ReadOnly()
        name = names.get(address)
        unit, cause = COUNTED.get(name, (name, None))
        expected = (shown | kept | constant).get(unit, 0)
        assert cause is None or int(dut.cause.value) == cause
        assert int(dut.port__rdata.value) == expected, f"register {name} at {address:#x}"
        assert int(dut.start.value) == (control == CONTROL_START)
        assert int(dut.reset.value) == (control == CONTROL_RESET)
        control = data if write and name == "control" else None
        for register, value in kept.items():
            assert int(getattr(dut, register).value) == value
        if write and name in kept:
            kept[name] = data
        await RisingEdge(dut.clk)
    assert all(kept.values()), "a register was never written"
