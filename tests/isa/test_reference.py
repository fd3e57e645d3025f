"""The reference against an oracle that works number by number, and against results by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from vdla.isa.insn import Gemm, Load, Param, Store, Table, Uop, Vector, encode_uop
from vdla.isa.params import HwParams
from vdla.isa.program import Program
from vdla.isa.reference import AddressError, State, execute, run
from vdla.isa.vector_ops import VECTOR_OPS, NumpyKit
from vdla.sim.verify.random_programs import random_program

from . import oracle

SMALL = HwParams(
    block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=8, uop_depth=8, par_depth=4,
    tmp_depth=8, out_depth=8, max_burst_beats=8, queue_depth=2, fetch_depth=2,
)  # fmt: skip
#: Odd depths, several rows a vector, entries wider and narrower than the bus.
ODD = replace(SMALL, batch=4, block_in=8, block_out=8, inp_depth=37, wgt_depth=19, acc_depth=23,
              uop_depth=21, par_depth=11, tmp_depth=13, out_depth=29, bus_bits=256)  # fmt: skip


#: With a table.
TABLE = replace(SMALL, par_depth=32, vector_table=1)
#: With one of int16.
WORDS = replace(SMALL, par_depth=40, vector_table=2)
#: With packed weights: scales in a beat, and in two.
PACKED = replace(SMALL, block_in=8, block_out=8, packed_weights=1)
TWO_BEATS = replace(PACKED, block_in=32, block_out=32)
#: With sliding windows.
WINDOW, ODD_WINDOW = replace(SMALL, vector_window=3), replace(ODD, vector_window=4)


@pytest.mark.fast(7)
@pytest.mark.parametrize(
    "params", [SMALL, ODD, HwParams(uop_depth=64), TABLE, replace(ODD, vector_table=1), WORDS,
               replace(ODD, par_depth=19, vector_table=2), WINDOW, ODD_WINDOW, PACKED, TWO_BEATS],
    ids=["4x4", "odd", "16", "4x4 table", "odd table", "4x4 table of int16", "odd table of int16",
         "4x4 window", "odd window", "8x8 packed", "32x32 packed"],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(4))
def test_random_programs_equal_the_oracle(params: HwParams, seed: int):
    program = random_program(params, 7000 + seed, length=30)
    dram = program.dram_image()
    scratchpads, expected_dram = oracle.run(params, list(program.insns), dram)
    state = run(program, dram)
    for name, contents in state.scratchpads().items():
        assert contents.tobytes() == scratchpads[name], name
    assert dram.tobytes() == expected_dram


def _state(params: HwParams = SMALL) -> State:
    """A machine with random contents, from one seed."""
    rng = np.random.default_rng(3)
    state = State(params, rng.integers(0, 256, 4096, np.uint8))
    for name in ("inp", "wgt", "par", "acc", "tmp"):
        memory = state.memory(name)
        info = np.iinfo(memory.dtype)
        memory[...] = rng.integers(info.min, info.max, memory.shape, memory.dtype, endpoint=True)
        memory[0] = info.min
    return state


@pytest.mark.parametrize(
    ("op", "reduce"), [(op.name, r) for op in VECTOR_OPS for r in (0, 2) if op.term or not r]
)
@pytest.mark.parametrize("post", ["none", "even", "tflite"])
def test_every_operator_on_extreme_numbers(op: str, reduce: int, post: str):
    state = _state()
    for shift in (0, 1, 31, 32, 63, -1, -31):
        reference = oracle.Oracle(SMALL, bytearray())
        reference.acc = [[int(v) for v in entry.reshape(-1)] for entry in state.acc]
        reference.tmp = [[int(v) for v in entry.reshape(-1)] for entry in state.tmp]
        state.par[2] = shift
        state.par[3] = [0, 1, 31, -1]
        state.table[...] = (np.arange(256) * 37 + 11).astype(np.int8)
        reference.table = state.table.tolist()
        reference.raw["par"] = [entry.tobytes() for entry in state.par]
        insns = (
            Param(par_base=0, zero_point=-3, lo=-100, hi=99),
            Vector(op=op, src0="acc", src1="par", dst="tmp", post=post, reduce=reduce,
                   extents=(2, 1, 2, 2), src0_strides=(4, 0, 2, 1), src1_base=3,
                   dst_strides=(1, 0, 0, 0) if reduce else (4, 0, 2, 1)),
        )  # fmt: skip
        for insn in insns:
            execute(insn, state)
            reference.execute(insn)
        got = [[int(v) for v in entry.reshape(-1)] for entry in state.tmp]
        assert got == reference.tmp, f"shift {shift}"


def test_a_chain_through_tmp_sees_each_result_of_the_iteration_before():
    state = _state()
    state.tmp[:2] = [[[1] * 4], [[2] * 4]]
    fibonacci = Vector(
        op="add", src0="tmp", src1="tmp", dst="tmp", extents=(1, 1, 1, 6),
        src0_strides=(0, 0, 0, 1), src1_base=1, src1_strides=(0, 0, 0, 1),
        dst_base=2, dst_strides=(0, 0, 0, 1),
    )  # fmt: skip
    execute(fibonacci, state)
    assert state.tmp[:, 0, 3].tolist() == [1, 2, 3, 5, 8, 13, 21, 34]


def test_gemm_multiplies_by_rows_of_the_weight_tile_and_first_overwrites():
    state = _state()
    state.inp[1] = [[1, 2, 3, 4]]
    state.wgt[2] = np.arange(16).reshape(4, 4)
    raw = [encode_uop(Uop(acc=5, inp=1, wgt=2, first=f), SMALL) for f in (1, 0)]
    state.uop[:2] = [list(word) for word in raw]
    execute(Gemm(uop_begin=0, uop_count=2, init=1), state)
    assert state.acc[5, 0].tolist() == [2 * v for v in (20, 60, 100, 140)]
    execute(Gemm(uop_begin=0, uop_count=1, init=0), state)
    assert state.acc[5, 0].tolist() == [3 * v for v in (20, 60, 100, 140)]


def test_accumulators_wrap_at_32_bits():
    state = _state()
    state.inp[0], state.wgt[0] = 127, 127
    state.acc[0] = 2**31 - 1
    execute(Gemm(uop_begin=0, uop_count=1), state)
    assert state.acc[0, 0, 0] == -(2**31) - 1 + 4 * 127 * 127


def test_padding_fills_every_byte_of_an_entry():
    state = _state()
    state.dram[:16] = range(16)
    load = Load(memory="par", base=0, dram_addr=0, x_size=1, y_size=1, pad_left=1, pad_top=1,
                pad_value=-2)  # fmt: skip
    execute(load, state)
    assert (state.par[:3] == -0x01010102).all()
    assert state.par[3].tolist() == [0x03020100, 0x07060504, 0x0B0A0908, 0x0F0E0D0C]


def test_parameters_are_zero_at_reset():
    state = State(SMALL, np.zeros(16, np.uint8))
    state.acc[0] = 1000
    execute(Vector(op="add", src0="acc", src1="imm", dst="out", post="even"), state)
    assert not state.out.any()
    execute(Vector(op="add", src0="acc", src1="imm", dst="out"), state)
    assert (state.out[0] == 127).all()


def test_what_lies_beyond_a_memory_names_the_instruction():
    uop = encode_uop(Uop(acc=7, inp=0, wgt=0), SMALL)
    insns = (
        Load(memory="uop", base=0, dram_addr=4096, x_size=1),
        Gemm(uop_begin=0, uop_count=1, outer=2, acc_outer=1),
    )
    program = Program(SMALL, insns, {4096: uop})
    with pytest.raises(AddressError, match=r"instruction 1: GEMM.*acc entry 8, depth 8"):
        run(program, program.dram_image())
    for insn in (Load(memory="inp", base=0, dram_addr=8188, x_size=2),
                 Store(base=0, dram_addr=8188, x_size=2)):  # fmt: skip
        program = Program(SMALL, (insn,), {}, {"dram_bytes": 8192})
        with pytest.raises(AddressError, match=r"instruction 0: .*DRAM byte 0x2003 is beyond"):
            run(program, program.dram_image())


def test_scratchpads_are_bytes_of_every_memory():
    contents = _state().scratchpads()
    assert {n: c.shape for n, c in contents.items()} == {
        n: (SMALL.depth(n), SMALL.entry_bytes(n)) for n in contents
    }


def test_a_table_is_looked_up_by_the_lowest_byte() -> None:
    table = np.random.default_rng(0).permutation(np.arange(-128, 128)).astype(np.int8)
    places = [0, 1, -1, 127, 128, -128, -129, 255, 256, 46_976, -57_617, 2**31 - 1, -(2**31)]
    for values in (table, table.astype(np.int16) * 257):
        found = NumpyKit(values).table(np.array(places, np.int32))
        assert found.dtype == np.int32
        assert found.tolist() == [values[place & 0xFF] for place in places]


def test_differences_are_looked_up_and_summed() -> None:
    """``table[(b - a) modulo 256]`` of int16; a sum of them does not begin with b."""
    state = State(WORDS, np.zeros(16, np.uint8))
    values = (np.arange(256) * 257 - 32768).astype(np.int16)
    state.par.reshape(-1).view(np.int16)[16 : 16 + 256] = values
    state.tmp[:4, 0] = [[1, 2, 3, 4], [-100, 500, 1 << 31 - 1, -(1 << 31)], [7] * 4, [0] * 4]
    look_up = Vector(op="table_diff", src0="tmp", src1="tmp", dst="tmp", src1_base=1, dst_base=3)
    execute(Table(par_base=2), state)
    execute(look_up, state)
    b, a = state.tmp[1, 0].astype(np.int64), state.tmp[0, 0]
    assert state.tmp[3, 0].tolist() == values[(b - a) & 255].tolist()
    summed = replace(look_up, reduce=1, extents=(1, 1, 1, 2), src0_strides=(0, 0, 0, 2))
    execute(summed, state)
    both = values[(b - a) & 255].astype(int) + values[(b - 7) & 255]
    assert state.tmp[3, 0].tolist() == both.tolist()
