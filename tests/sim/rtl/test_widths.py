"""Wider fields of instructions: hardware and model take every width from the encoding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from vdla.isa import encoding
from vdla.isa.depend import insert_tokens
from vdla.isa.insn import Gemm, Insn, Load, Param, Store, Uop, Vector, encode_uop
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams
from vdla.isa.program import Program
from vdla.sim.rtl.driver import RtlSimulator
from vdla.sim.verify.campaign import compare
from vdla.sim.verify.random_programs import random_program

PARAMS = HwParams(
    block_in=4, block_out=4, inp_depth=6000, wgt_depth=9, acc_depth=40, uop_depth=12, par_depth=33,
    tmp_depth=9, out_depth=5000, queue_depth=3, fetch_depth=4,
)  # fmt: skip
#: Without these bits the fields would not hold the values that :data:`INSNS` gives them.
WIDTHS = {"SIZE_BITS": 13, "VECTOR_EXTENT_BITS": 11, "PAD_BITS": 7, "Y_STRIDE_BITS": 25}
LONG, LONG_LOOP, PAD, STRIDE = 4099, 1027, 37, (1 << 24) + 64
DRAM_BYTES, UOP_ADDR = 1 << 25, 1 << 20
LOAD = Load(memory="inp", base=0, dram_addr=0, x_size=2)
GEMM = Gemm(uop_begin=0, uop_count=1, init=1)
VECTOR = Vector(op="add", src0="acc", src1="imm", imm=1, dst="tmp", reduce=1)
STORE = Store(base=0, dram_addr=1 << 21, x_size=2)
INSNS: list[Insn] = [
    Load(memory="uop", base=0, dram_addr=UOP_ADDR, x_size=1),
    replace(LOAD, x_size=LONG),
    replace(LOAD, y_size=LONG // 2 * 2, x_size=1, y_stride=8),
    replace(LOAD, z_size=LONG, x_size=1, z_stride=4),
    replace(LOAD, y_size=2, y_stride=STRIDE),
    replace(LOAD, pad_left=PAD, pad_right=PAD + 1, pad_value=3),
    replace(LOAD, pad_top=PAD, pad_bottom=PAD + 1, pad_value=-5),
    replace(GEMM, outer=LONG),
    replace(GEMM, inner=LONG, inp_inner=1),
    *(
        replace(VECTOR, extents=tuple(LONG_LOOP if k == loop else 1 for k in range(4)),
                reduce=4 - loop)
        for loop in range(4)
    ),
    replace(VECTOR, src0="inp", dst="out", reduce=0, extents=(4, 1, 1, LONG_LOOP),
            src0_strides=(LONG_LOOP, 0, 0, 1), dst_strides=(LONG_LOOP, 0, 0, 1)),
    Param(par_base=30, zero_point=-128, lo=-128, hi=127),
    replace(STORE, x_size=LONG),
    replace(STORE, y_size=LONG, x_size=1, y_stride=16),
    replace(STORE, z_size=LONG, x_size=1, z_stride=16),
    replace(STORE, y_size=2, y_stride=STRIDE - (1 << 22)),
]  # fmt: skip


@pytest.fixture
def wider(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another instruction set."""
    for name, bits in WIDTHS.items():
        assert getattr(encoding, name) < bits
        monkeypatch.setattr(encoding, name, bits)
    encoding.layout.cache_clear()
    yield
    encoding.layout.cache_clear()


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.usefixtures("wider")
def test_hardware_and_model_follow_the_encoding() -> None:
    params = replace(PARAMS)  # derives its sizes anew
    rtl, memory = RtlSimulator(params), MEMORY_PRESETS["vta"]
    data = np.random.default_rng(1).integers(0, 256, 1 << 16, np.uint8).tobytes()
    uop = encode_uop(Uop(acc=0, inp=0, wgt=0, first=1), params)
    image = {0: data, STRIDE: data[:64], UOP_ADDR: uop}
    insns = tuple(insert_tokens(INSNS, params, image))
    programs = [Program(params, insns, image, {"dram_bytes": DRAM_BYTES}, 1 << 19)]
    programs += [random_program(params, seed) for seed in range(3)]
    for program in programs:
        found = compare(
            program, program.dram_image(), memory, lambda p, d, m: rtl.run(p, d, m, 1_000_000)
        )
        assert found["first_divergence"] is None
        assert not found["byte_mismatches"] and not found["cycle_mismatches"]
