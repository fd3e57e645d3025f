"""Bugs in the hardware."""

from __future__ import annotations

from vdla.hw.core.core import Core
from vdla.hw.core.dma import BurstCutter, ReadArbiter
from vdla.hw.core.fetch import Fetch
from vdla.hw.core.gemm import Gemm
from vdla.hw.core.load import request, transfer, unpacker
from vdla.hw.core.load.placer import Placer
from vdla.hw.core.load.unpacker import Unpacker
from vdla.hw.core.load.walker import Walker
from vdla.hw.core.load.writer import Writer
from vdla.hw.core.queue import Queue
from vdla.hw.core.regs import CauseCounters
from vdla.hw.core.store import Store
from vdla.hw.core.technology import multiply
from vdla.hw.core.token import TokenBank
from vdla.hw.core.vector import Vector
from vdla.hw.core.vector.controls import Controls
from vdla.hw.core.vector.interlock import Interlock
from vdla.hw.core.vector.issue import Issue
from vdla.hw.core.vector.kits import rounds_up
from vdla.hw.core.vector.lane import LookUp, Reduction
from vdla.hw.core.vector.parameters import Parameters
from vdla.hw.core.vector.requantize import Requantizer
from vdla.hw.core.vector.window import Unwritten, Window

from .checks import passes_differ, rtl_differs, second_run, tests, wrong_stops
from .plant import Mutant

#: Tables between instructions that look up.
NEIGHBOURS = tests("hw/core/test_vector.py::test_the_table_changes_between_neighbours")

#: A depthwise convolution of two rows, in one pass and in two.
WINDOW = tests("hw/core/test_vector.py::test_a_window_slides_along_rows")

#: Tiles of packed weights, by the parts of the load unit.
UNPACKER = tests("hw/core/load/test_unpacker.py")
WRITER = tests("hw/core/load/test_writer.py::test_packed_entries")
REQUESTER = tests("hw/core/load/test_request.py::test_bursts_and_descriptors[packed]")

RTL = (
    # ---- tensor core
    Mutant("swapped strides", "rtl gemm", Gemm._issue,
           'insn[f"{n}_inner"]', 'insn[f"{n}_outer"]', rtl_differs),
    Mutant("off-by-one latency", "rtl gemm", Gemm._pipeline,
           "m.d.comb += [unit.end", "m.d.sync += [unit.end",
           rtl_differs),
    Mutant("transposed weights", "rtl gemm", multiply,
           "w.word_select(o * size + i,", "w.word_select(i * size + o,", rtl_differs),
    Mutant("no forwarding over three cycles", "rtl gemm", Gemm._accumulate,
           "Mux(two_ahead | three_ahead, ", "Mux(two_ahead, ", rtl_differs),
    Mutant("older result forwarded", "rtl gemm", Gemm._accumulate,
           "Mux(two_ahead, result, older)", "Mux(three_ahead, older, result)",
           rtl_differs),
    Mutant("one entry beyond is legal", "rtl gemm", Gemm._entries,
           "entry[n] >= params.depth(n)", "entry[n] > params.depth(n)", wrong_stops),
    # ---- vector unit
    Mutant("truncating, not saturating", "rtl vector", Controls._limits,
           "before.requantized | before.out", "before.requantized", rtl_differs),
    Mutant("wrong rounding", "rtl vector", rounds_up,
           "dropped[1] & (dropped[0] | floor[0])", "dropped[1]", rtl_differs),
    Mutant("ties of negatives go up", "rtl vector", Requantizer._shift,
           "saturate.tflite, ~negative, value[0])", "saturate.tflite, 1, value[0])", rtl_differs),
    Mutant("interlock misses the last stage", "rtl vector", Interlock._conflicts,
           "for write in self.writes", "for write in self.writes[:-1]", rtl_differs),
    Mutant("zero point of the next", "rtl vector", Parameters._takes,
           "capture.stage - 1", "capture.stage - (capture.tag != Tag.CLAMP)", rtl_differs),
    Mutant("half of a product's middle", "rtl vector", Reduction.elaborate,
           "(self.y[HALF:] + self.upper)", "self.y[HALF:]", rtl_differs),
    Mutant("parameters of the other pass", "rtl vector", Parameters._takes,
           " & (before.part == part)", "", passes_differ),
    Mutant("result of the other pass", "rtl vector", Reduction.elaborate,
           "before = results[-1]", "before = results[0]", passes_differ),
    Mutant("next one before the last pass", "rtl vector", Issue.elaborate,
           "last & ends & ~interlock.hazard", "last & ~interlock.hazard", passes_differ),
    Mutant("tmp of the other pass", "rtl vector", Vector._read,
           "self.tmp1.addr.eq(Cat(part, ", "self.tmp1.addr.eq(Cat(~part, ", passes_differ),
    Mutant("last word of the table too late", "rtl vector", Issue.elaborate,
           "step == table_iterations(params) - 2", "step == table_iterations(params) - 3",
           NEIGHBOURS),
    Mutant("words of the table from a row too few", "rtl vector", Issue.elaborate,
           "params.block.bit_length() - 1)", "params.block.bit_length())", NEIGHBOURS),
    Mutant("table's row of another word", "rtl vector", Vector._write_table,
           "its.imm[:bits], ", "its.imm[1 : bits + 1], ", NEIGHBOURS),
    Mutant("byte for the next operand", "rtl vector", LookUp.elaborate,
           "word_select(place, bits)", "word_select(index[:place_bits], bits)", NEIGHBOURS),
    Mutant("difference the other way round", "rtl vector", LookUp.elaborate,
           "self.b - self.a", "self.a - self.b", NEIGHBOURS),
    Mutant("every look-up is of a difference", "rtl vector", LookUp.elaborate,
           "If(self.told.difference)", "If(self.told.difference | 1)", NEIGHBOURS),
    Mutant("the table's value counts for the next operands", "rtl vector", Controls._table,
           "choices, Stage.ADD", "choices, Stage.OPERATE", NEIGHBOURS),
    Mutant("the operator that asks for differences is the other one", "rtl vector",
           Controls._table, "op == code", "op != code",
           tests("hw/core/vector/test_controls.py")),
    Mutant("a table beyond par is legal", "rtl vector", Issue._beyond,
           "either(is_table, self.params.table_entries, ", "either(is_table, 0, ",
           tests("hw/core/test_vector.py::test_refuses_with_a_table")),
    Mutant("a window's first results are written", "rtl vector", Issue._describe,
           "writes &= ~unwritten", "pass",
           tests("hw/core/vector/test_issue.py::test_passes_in_order")),
    Mutant("results that are not written take entries", "rtl vector", Issue._join_loops,
           'either(unwritten if name == "dst" else None, 0, moves)', "moves", WINDOW),
    Mutant("a window leaves results out once", "rtl vector", Unwritten.elaborate,
           "m.d.sync += left.eq(count)", "m.d.sync += left.eq(0)", WINDOW),
    Mutant("sums of a window stay", "rtl vector", Window.elaborate,
           "Mux(self.add.moves, before, sums[i][-1])", "sums[i][-1]", WINDOW),
    Mutant("sums of the other pass", "rtl vector", Window.elaborate,
           "before = sums[i - 1][-1]", "before = sums[i - 1][0]", WINDOW),
    Mutant("the weight of another column", "rtl vector", Window.elaborate,
           "self.b.word_select(i, ", "self.b.word_select(i ^ 1, ", WINDOW),
    Mutant("the sum before", "rtl vector", Controls._window,
           "number == i", "number == i + 1", WINDOW),
    Mutant("a window wider than its row is legal", "rtl vector", Issue._illegal_window,
           '(head.imm < head[f"n{k}"])', "1",
           tests("hw/core/test_vector.py::test_refuses_a_window")),
    # ---- load, store and the bus
    Mutant("wrong padding value", "rtl load", Writer._write,
           "pad_value.eq(target.pad_value)", "pad_value.eq(~target.pad_value)", rtl_differs),
    Mutant("wrong padding value behind the first beat", "rtl load", Writer._write,
           "target.pad_value.replicate", "(~target.pad_value).replicate", rtl_differs),
    Mutant("first beat of an entry is its last", "rtl load", Writer._write,
           "written if count == 1 else first", "written", rtl_differs),
    Mutant("rows begin aligned", "rtl load", Walker._rows,
           "offset.eq(self.offset + box.y_stride)", "offset.eq(self.offset)", rtl_differs),
    Mutant("a plane too few", "rtl load", Walker._rows,
           "z + 2 == box.z_size", "z + 3 == box.z_size", rtl_differs),
    Mutant("an entry ends beside padding", "rtl load", Placer._place,
           "wide & collector.at_first", "wide", rtl_differs),
    Mutant("the scale of the next row", "rtl packed", Unpacker._scales,
           "self.number - len(headers)", "self.number - len(headers) + 1", UNPACKER),
    Mutant("the first scales are the last", "rtl packed", Unpacker._scales,
           "self.number == number", "self.number == 0", UNPACKER),
    Mutant("weights of 4 bits without sign", "rtl packed", unpacker._product,
           "Mux(weight[2], minus, minus << 1)", "Mux(weight[2], thrice, once << 1)", UNPACKER),
    Mutant("two weights of a byte swapped", "rtl packed", Unpacker.elaborate,
           "weights.word_select(i,", "weights.word_select(i ^ 1,", UNPACKER),
    Mutant("scales are weights", "rtl packed", Writer._of_packed,
           "scales + part // 2", "scales - 1 + part // 2", WRITER),
    Mutant("padding is multiplied", "rtl packed", Writer._unpack,
           "placed.target.widen & ~placed.pad", "placed.target.widen", WRITER),
    Mutant("rows of packed weights without their scales", "rtl packed", request._times,
           "if size >> bit & 1", "if size >> bit == 1", REQUESTER),
    Mutant("packed tiles have no scales", "rtl packed", transfer.entry_sizes,
           'params.dram_entry_bytes("wgt", 1)', 'params.entry_bytes("wgt") // 2',
           tests("hw/core/load/test_transfer.py")),
    Mutant("lost last beat of a burst", "rtl store", Store._send,
           "strb.eq(strobes_now)", "strb.eq(Mux(lasts, 0, strobes_now))", rtl_differs),
    Mutant("done before the last response", "rtl store", Store.elaborate,
           "self.response & responses.o.payload.last", "self.response", rtl_differs),
    Mutant("bursts cross pages", "rtl dma", BurstCutter.elaborate,
           "row_ends.eq(~long & ~crosses)", "row_ends.eq(~long)", rtl_differs),
    Mutant("load before fetch", "rtl dma", ReadArbiter.elaborate,
           "with m.If(self.fetch.valid):", "with m.If(self.fetch.valid & ~self.load.valid):",
           rtl_differs),
    # ---- queues, tokens and control
    Mutant("a slot too many", "rtl queue", Queue.elaborate,
           "level != self.depth - 1", "level != self.depth", rtl_differs),
    Mutant("prefetches too little", "rtl fetch", Fetch.elaborate,
           "wanted <= params.fetch_depth)", "wanted < params.fetch_depth)", rtl_differs),
    Mutant("prefetches too much", "rtl fetch", Fetch.elaborate,
           "room_for(first_of(rest))", "room_for(0)", rtl_differs),
    Mutant("token lost when one comes", "rtl token", TokenBank.elaborate,
           "m.Elif(pop & ~push)", "m.Elif(pop)", rtl_differs),
    Mutant("counter wraps unseen", "rtl token", TokenBank.elaborate,
           "Cat(overflows).any()", "0", wrong_stops),
    Mutant("ignored reset", "rtl core", Core.elaborate,
           "m.submodules[name] = reset(part)",
           'm.submodules[name] = part if name == "tokens" else reset(part)', second_run),
    Mutant("runs foreign programs", "rtl core", Core._control,
           "regs.program_hash != int(self.params.hash, 16)", "regs.program_hash == 0",
           wrong_stops),
    Mutant("deadlock seen only when all is fetched", "rtl core", Core._control,
           "(fetch.done | fetch.blocked)", "fetch.done", wrong_stops),
    Mutant("a lone transfer counts as idle", "rtl core", Core._counters,
           "in_flight[unit] != 0", "in_flight[unit] > 1", rtl_differs),
    Mutant("counters outlive a reset", "rtl core", CauseCounters.elaborate,
           "Mux(seen.bit_select(cause, 1), read.data, 0)", "read.data", second_run),
)  # fmt: skip
