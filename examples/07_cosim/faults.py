"""Faults in the memory, and what must come of each. Run it with

    vdla cosim examples/models/digits_int8.onnx --hw 4x4 --bench examples/07_cosim/faults.py

Every test runs the program that the command was given, from reset, with a fault in a memory that is
otherwise the model of docs/timing.md.
"""

import cocotb
from vdla.cosim import CoSimulation, Diverged
from vdla.isa.insn import Load

SLVERR = 2


async def find(cosim):
    """Run the program; returns the first divergence, which there must be."""
    try:
        await cosim.run()
    except Diverged as found:
        cosim.dut._log.info("found: %s", found)
        return found.divergence
    raise AssertionError("the fault was not found")


def data_of_a_load(cosim):
    """The first load, and the address of its first beat."""
    insns = cosim.job.program.insns
    index = next(i for i, insn in enumerate(insns) if isinstance(insn, Load))
    bus_bytes = cosim.job.program.params.bus_bytes
    return index, insns[index].dram_addr // bus_bytes * bus_bytes


async def with_fault(dut, fault):
    """A run whose read data go through ``fault(beat, address)``, the address being a load's; the
    divergence, and the index of the load.
    """
    cosim = CoSimulation.from_command(dut)
    await cosim.prepare()
    index, address = data_of_a_load(cosim)
    cosim.dram.on_read = lambda beat: fault(beat) if beat.address == address else None
    return await find(cosim), index


@cocotb.test()
async def a_flipped_bit(dut):
    """It is in the scratchpad when the load ends."""

    def fault(beat):
        beat.data ^= 1

    found, index = await with_fault(dut, fault)
    assert found.instruction == index and found.unit == "load"
    assert int(found.expected) ^ int(found.got) == 1


@cocotb.test()
async def a_dropped_beat(dut):
    """The load waits for it, or takes the next for it: it is the first that goes wrong."""

    def fault(beat):
        beat.drop = True

    found, index = await with_fault(dut, fault)
    assert found.instruction == index and found.unit == "load"


@cocotb.test()
async def a_slave_error(dut):
    """The core stops, and says at which instruction."""

    def fault(beat):
        beat.resp = SLVERR

    found, index = await with_fault(dut, fault)
    assert found.what == "status" and found.got.startswith("BUS")
    assert found.instruction == index


@cocotb.test()
async def a_late_response(dut):
    """Nothing but the cycle of an instruction changes."""
    cosim = CoSimulation.from_command(dut)
    await cosim.prepare()
    cosim.dram.delay_cycles = 1
    found = await find(cosim)
    assert found.what == "start cycle" and int(found.got) == int(found.expected) + 1


@cocotb.test()
async def no_fault(dut):
    """The memory as it should be: nothing is found."""
    await CoSimulation.from_command(dut).run()
