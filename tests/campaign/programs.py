"""Programs for cases that random programs hit too seldom."""

from __future__ import annotations

from vdla.isa.insn import Gemm, Insn, Vector
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
    """The vector unit takes the tensor core's tokens from a stock, so that now and then a token is
    pushed in the cycle in which another one is popped.
    """
    stock = 3
    gives = [Gemm(uop_begin=0, uop_count=1, inner=1 + k % 11, push=Units.VECTOR) for k in range(60)]
    takes = Vector(op="max", src0="inp", src1="imm", dst="out", pop=Units.GEMM)
    insns: list[Insn] = [*gives[:stock]]
    for give in gives[stock:]:
        insns += [give, takes]
    return Program(params, (*insns, *[takes] * stock))
