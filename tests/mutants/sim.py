"""Bugs in the SimPy model and in the reference that it takes values from."""

from __future__ import annotations

from vdla.isa import footprint, reference, vector_ops
from vdla.runtime.cache import one_process
from vdla.sim.model import kernels, load, loop, regs, sdram, values, vector
from vdla.sim.model.dma import ReadArbiter, Rows, WriteChannel
from vdla.sim.model.gemm import Gemm
from vdla.sim.model.llvm_kit import LlvmKit
from vdla.sim.model.queue import Queue
from vdla.sim.model.unit import UnitProcess
from vdla.sim.model.vector import Pattern

from .checks import sim_differs, table_differs, tests, window_differs
from .plant import Mutant

LOOP = tests("sim/model/test_loop.py::test_random_programs")
SDRAM = tests("sim/test_sdram.py::test_random_programs",
              "sim/test_sdram.py::test_rows_banks_and_turns_of_the_data_pins")  # fmt: skip
WINDOWS = tests("sim/model/test_values.py::test_random_programs")
SIM = (
    Mutant("off-by-one latency", "sim gemm", Gemm.step,
           "self.ready + GEMM_DEPTH", "self.ready + GEMM_DEPTH - 1", sim_differs),
    Mutant("load before fetch", "sim dma", ReadArbiter._grant,
           "if grant >= before:", "if grant > before:", sim_differs),
    Mutant("bursts cross pages", "sim dma", Rows.bursts,
           "cut_bursts(at % PAGE_BYTES, ", "cut_bursts(at % bus_bytes, ", sim_differs),
    Mutant("unlimited outstanding reads", "sim dma", ReadArbiter._grant,
           "1 + (grant if grant > last_beats[0] else last_beats[0])", "1 + grant", sim_differs),
    Mutant("unlimited bandwidth", "sim dma", WriteChannel.send,
           "max(memory.cycles_per_beat, step)", "step", sim_differs),
    Mutant("a slot too many", "sim queue", Queue.rooms,
           "repeat((), self.depth)", "repeat((), self.depth + 1)", sim_differs),
    Mutant("token there too early", "sim token", UnitProcess.end,
           "counter.put(cycle)", "counter.put(cycle - 1)", sim_differs),
    Mutant("hazard window one short", "sim vector", Pattern._conflicts,
           "self.passes) + 1):", "self.passes)):", sim_differs),
    Mutant("a table costs a cycle less", "sim vector", vector._pattern,
           "table_iterations(params), 1", "table_iterations(params) - 1, 1", table_differs),
    Mutant("a window writes from its first result on", "sim vector", vector._tmp_columns,
           'fields["imm"] * slides', "0 * slides", window_differs),
    Mutant("sums of a window stay", "sim values", kernels.Vector._slide,
           "b.select(first, before, own)", "own", WINDOWS, (values._kernels,)),
    Mutant("a window's weights have no sign", "sim values", LlvmKit.tap,
           "self.b.sext(self.b.trunc(v, byte), x.type)",
           "self.b.zext(self.b.trunc(v, byte), x.type)", WINDOWS, (values._kernels,)),
    Mutant("sums of a window stay", "reference", reference._slide,
           "[still, *sums[:-1]]", "[still, *sums[1:]]",
           tests("isa/test_reference.py::test_random_programs_equal_the_oracle")),
    Mutant("results that are not written are left free", "reference", footprint.written_entries,
           "before[-1 - reduce]", "before[-2]",
           tests("isa/test_reference.py::test_random_programs_equal_the_oracle")),
    Mutant("the loop grants load before fetch", "sim loop", loop._grant.__wrapped__,
           "grant < before", "grant <= before", LOOP),
    Mutant("the loop forgets beats beside padding", "sim loop", loop._grant.__wrapped__,
           "last = max(last, padded", "last = max(0, padded", LOOP),
    Mutant("the loop sees tokens too early", "sim loop", loop._startable.__wrapped__,
           "return cycle + 1", "return cycle", LOOP),
    Mutant("the loop's hazards are one short", "sim loop", loop._last_pass.__wrapped__,
           "written[entries[left + i]] + VECTOR_DEPTH",
           "written[entries[left + i]] + VECTOR_DEPTH - 1", LOOP),
    Mutant("the loop's writes have all the bandwidth", "sim loop", loop._settle.__wrapped__,
           "next_beat = last + spacing", "next_beat = last + 1", LOOP),
    Mutant("the loop has any number of stores in flight", "sim loop", loop._settle.__wrapped__,
           "start = max(start, responses[taken[_STORE] % len(responses)] + 1)", "pass", LOOP),
    Mutant("the loop lets a write go before a read", "sim loop", loop._happen.__wrapped__,
           "if cycle < reads", "if cycle <= reads", LOOP),
    Mutant("a write goes before a read", "sim sdram", sdram.SdramArbiter.decide,
           "if writes < reads", "if writes <= reads", SDRAM),
    Mutant("a bank is closed too early after a write", "sim sdram", sdram.schedule.__wrapped__,
           "last + rules[_WRITE_TO_CLOSE]", "last + rules[_READ_TO_CLOSE]", SDRAM),
    Mutant("the data pins turn at once", "sim sdram", sdram.schedule.__wrapped__,
           "state[_READ] + rules[_READ_TO_WRITE]", "state[_READ]", SDRAM),
    Mutant("a refresh waits for one more segment", "sim sdram", sdram.schedule.__wrapped__,
           "state[_DUE] <= now", "state[_DUE] < now", SDRAM),
    Mutant("beats pass those before them", "sim sdram", sdram.receive.__wrapped__,
           "max(max(valid, ready), free)", "max(valid, ready)", SDRAM),
    Mutant("table from the wrong entry", "sim values", kernels.Table.body,
           'self.params.entry_bytes("par")', "4", table_differs, (values._kernels,)),
    Mutant("half of a table of int16", "sim values", kernels.Table.body,
           "TABLE_VALUES * self.params.vector_table", "TABLE_VALUES",
           tests("sim/model/test_values.py::test_random_programs"), (values._kernels,)),
    Mutant("values of int16 read as bytes", "sim values", LlvmKit.table,
           "8 * self._table_bytes", "8",
           tests("sim/model/test_values.py::test_random_programs"), (values._kernels,)),
    Mutant("a table of bytes in any case", "reference", reference.execute,
           "rows.reshape(-1).view(state.table.dtype)", "rows.reshape(-1).view(np.int8)[:256]",
           tests("isa/test_reference.py::test_differences_are_looked_up_and_summed")),
    Mutant("looks up without wrapping the index", "reference", vector_ops.NumpyKit.table,
           "a % TABLE_VALUES", "np.clip(a, -128, 127)",
           tests("isa/test_reference.py::test_a_table_is_looked_up_by_the_lowest_byte")),
    Mutant("right padding costs nothing", "sim load", load.plan,
           "padding = right + (bottom", "padding = 0 + (bottom", sim_differs),
    Mutant("left padding before the first beat", "sim load", load.plan,
           "left if entry_bytes > params.bus_bytes else 0", "0", sim_differs),
    Mutant("a beat beside padding counted twice", "sim dma", ReadArbiter._grant,
           "port.overlaps += 1", "port.overlaps += 0", sim_differs),
    Mutant("flights counted twice", "sim regs", regs.account,
           "until - np.maximum(cursor, starts)", "until - starts", sim_differs),
    Mutant("widens without sign", "sim values", kernels.Load.body,
           "b.sext(self.read(source, i, I8), I32)", "b.zext(self.read(source, i, I8), I32)",
           sim_differs, (values._kernels,)),
    Mutant("widens without sign", "reference", reference._load,
           "values.view(np.int8)", "values.view(np.uint8)", sim_differs),
    Mutant("adds to what is overwritten", "reference", reference._gemm,
           "counts = order >= overwritten[acc]", "counts = order >= 0", sim_differs),
    Mutant("processes build a simulator at once", "sim build", one_process.__wrapped__,
           "fcntl.flock(lock, fcntl.LOCK_EX)", "pass",
           tests("sim/rtl/test_rtl.py::test_builds_at_once_do_not_disturb_each_other")),
    Mutant("divides negatives downwards", "reference", vector_ops.requantize_tflite,
           "(mask >> 1) + (high < 0)", "(mask >> 1)", sim_differs),
)  # fmt: skip
