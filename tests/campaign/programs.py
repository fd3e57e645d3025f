"""Programs that random ones hit too seldom."""

from __future__ import annotations

from vdla.isa.insn import Gemm, Vector
from vdla.isa.opcodes import Units
from vdla.isa.params import HwParams
from vdla.isa.program import Program


def tmp_chains(params: HwParams) -> Program:
    """Reads of tmp 1 to 18 iterations behind the write of the entry: around the depth of the
    vector pipeline, one iteration decides whether a read waits. Needs 40 entries of tmp.
    """
    step = {"src0_strides": (0, 0, 0, 1), "dst_strides": (0, 0, 0, 1)}
    insns = (
        Vector(op="add", src0="tmp", src1="imm", dst="tmp", imm=1, extents=(1, 1, 1, 22),
               dst_base=distance, **step)
        for distance in range(1, 19)
    )  # fmt: skip
    return Program(params, tuple(insns))


def token_stream(params: HwParams) -> Program:
    """The tensor core gives tokens as fast as the vector unit takes them, from a stock of a few: in
    many cycles one comes and one goes.
    """
    insns: list[Gemm | Vector] = [Vector(op="max", src0="inp", src1="imm", dst="out",
                                         extents=(1, 1, 1, 60))]  # fmt: skip
    for k in range(60):
        insns.append(Gemm(uop_begin=0, uop_count=1, inner=1 + k % 2, push=Units.VECTOR))
        insns.append(Vector(op="max", src0="inp", src1="imm", dst="out", pop=Units.GEMM,
                            extents=(1, 1, 1, 1 + k % 3)))  # fmt: skip
    return Program(params, tuple(insns))
