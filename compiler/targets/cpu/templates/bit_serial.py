"""Products of integers of one or two bits, bit by bit: when they are chosen, and their schedule."""

from __future__ import annotations

from dataclasses import dataclass

from ....choose.space import Knobs, Refusal, Space, preferring
from ....choose.template import Decision, Plan
from ....graph.ops.bit_serial import BitSerialConv2d, BitSerialDense
from ....te.expr import popcount
from ....te.intrinsic import TensorIntrin
from ....te.schedule import Schedule
from ....te.stage import Stage
from ....te.tensor import compute, placeholder, reduce_axis, sum_of
from ....topi.bit_serial import LANES, WORD_BITS
from ...common.workload import OperatorWorkload
from ..micro_kernel_code import native_intrinsics
from ..micro_kernels import DOT
from ..processor import Processor
from .base import CpuTemplate
from .plain import share_rows


def _popcount_dot() -> TensorIntrin:
    """``y[o] += popcount(x & w[o])`` for the outputs of a block."""
    x, w = placeholder((1,), "uint32", "x"), placeholder((1, LANES), "uint32", "w")
    k = reduce_axis(1, "k")
    rule = compute((LANES,), lambda o: sum_of(popcount(x[k] & w[k, o]), k), "y")
    return TensorIntrin("popcount_dot", rule)


POPCOUNT_DOT = _popcount_dot()


#: Instructions for the products of a word of elements with a vector of outputs. For each pair of
#: bit planes: with instructions that count ones, or with steps that add them up. For int8: by fours
#: or one by one.
COUNTED, COUNTED_IN_STEPS = 3, 16
DIRECT_BY_FOURS, DIRECT_ALONE = WORD_BITS // 4, WORD_BITS
#: Number of products from which it pays to share them among threads.
SHARED_MACS = 1 << 20
#: Values of the knob ``algorithm``.
DIRECT, BIT_SERIAL = "direct", "bit-serial"


@dataclass(frozen=True)
class BitsWorkload(OperatorWorkload):
    """A product of integers: elements have ``bits`` bits, codes of weights ``weight_bits``."""

    bits: int
    weight_bits: int


class IntegerAlgorithm(Decision[BitsWorkload]):
    """How a product of integers of one or two bits is computed: as a product of int8 ("direct"), or
    bit by bit ("bit-serial"). The results are the same to the bit.
    """

    name = "integer algorithm"

    def __init__(self, processor: Processor):
        self.processor = processor

    def space(self, workload: BitsWorkload) -> Space:
        return Space({"algorithm": (DIRECT, BIT_SERIAL)})

    def plan(self, workload: BitsWorkload, fixed: Knobs) -> Plan | Refusal:
        algorithms = [fixed["algorithm"]] if fixed else [DIRECT, BIT_SERIAL]
        plans = [Plan(k, self.predict(workload, k)) for k in ({"algorithm": a} for a in algorithms)]
        return min(plans, key=lambda plan: plan.cycles or 0)

    def predict(self, workload: BitsWorkload, knobs: Knobs) -> int:
        """At one instruction a cycle, without the work of extracting the bit planes."""
        (image, _), (weight, _), *_ = workload.operands
        macs = workload.op.macs(image, weight, (weight[0],))
        pairs = workload.bits * workload.weight_bits
        counts = self.processor.has("avx512vpopcntdq")
        by_fours = DOT in native_intrinsics(self.processor) and len(image) == 4
        if knobs["algorithm"] == BIT_SERIAL:
            each = pairs * (COUNTED if counts else COUNTED_IN_STEPS)
        else:
            each = DIRECT_BY_FOURS if by_fours else DIRECT_ALONE
        return round(macs * each / (LANES * WORD_BITS))


class BitSerial(CpuTemplate):
    """A block of outputs at a time. The loops over pairs of bit planes are unrolled, and the counts
    of each pair stay in a vector register. ``parallel``: threads share the positions or the blocks.
    """

    name = "bit-serial"
    ops = (BitSerialConv2d, BitSerialDense)

    def space(self, workload: OperatorWorkload) -> Space:
        shares = workload.op.macs(*(shape for shape, _ in workload.operands)) >= SHARED_MACS
        return Space({"parallel": preferring(shares, (False, True))})

    def apply(self, workload: OperatorWorkload, knobs: Knobs, schedule: Schedule) -> None:
        sums = schedule_planes(schedule)
        if knobs["parallel"]:
            share_rows(sums, sums.tensor.axes[-2])
        for stage in schedule.stages:
            if stage.name in ("codes", "y", "acc") and stage.body is not None:
                stage.compute_inline()


def schedule_planes(schedule: Schedule) -> Stage:
    """Schedule the products of ``topi.bit_serial``; returns the stage of their ``sums``."""
    by_name = {stage.name: stage for stage in schedule.stages}
    sums, ones, planes = by_name["sums"], by_name["ones"], by_name["planes"]
    *outer, position = planes.tensor.axes
    if len(outer) == 3:  # of an image: its positions lie side by side
        position, lanes = planes.split(position, LANES)
        planes.reorder(*outer, position, *planes.tensor.reduce_axes, lanes)
        planes.vectorize(lanes)
    *outer, o = sums.tensor.axes
    sums.reorder(*outer, *sums.tensor.reduce_axes, o)
    for axis in sums.tensor.reduce_axes:
        sums.unroll(axis)
    sums.vectorize(o)
    ones.compute_at(sums, outer[-1])
    *outer, i, j, o = ones.tensor.axes
    ones.unroll(i)
    ones.unroll(j)
    *taps, word = ones.tensor.reduce_axes
    k, one = ones.split(word, 1)
    ones.reorder(*outer, i, j, *taps, k, one, o)
    ones.tensorize(one, POPCOUNT_DOT)
    return sums
