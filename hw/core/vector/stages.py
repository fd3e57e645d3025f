"""The pipeline of the vector unit: its stages, and what an iteration carries through them."""

from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Module, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ....isa.encoding import INT32_BITS, Field, layout
from ....isa.opcodes import SRC0_MEMORIES, SRC1_MEMORIES, Features, Opcode, Unit
from ....isa.params import HwParams
from ....isa.timing import PARAM_ITERATIONS, VECTOR_DEPTH, table_iterations
from ..pipeline import PipelineStage, delayed


class Stage(PipelineStage):
    """What happens to a pass of an iteration in each cycle since its issue."""

    ISSUE = "the addresses of the operands go out"
    READ = "the operands are there; those that the instruction names are registered"
    OPERATE = "a comparison, a shift and a product give the parts of the operator's result"
    ADD = "the parts are added"
    REDUCE = "the sum is merged with the result of the iteration before"
    BIAS = "plus the bias"
    SCALE = "shifted left, where the rounding is tflite's"
    MULTIPLY = "times the multiplier: four products of halves"
    JOIN = "their sum, of 64 bits"
    HIGH = "its high half, doubled and rounded, where the rounding is tflite's"
    COARSE = "divided by 2**(shift & 56)"
    FINE = "divided by 2**(shift & 7)"
    SATURATE = "saturated to more than int8, and whether it is rounded up"
    ROUND = "rounded, plus the zero point, and compared with the limits"
    CLAMP = "clamped"
    SEND = "on its way to the memories"
    WRITE = "tmp or out is written, and tokens are pushed after the last iteration"


assert Stage.WRITE == VECTOR_DEPTH, "the timing contract says how long an iteration takes"


class Tag(IntEnum):
    """What an iteration is for: a vector, one of the parameters that PARAM sets, in order, or a
    word of the table.
    """

    DATA = 0
    BIAS = 1
    MULTIPLIER = 2
    SHIFT = 3
    CLAMP = 4
    TABLE = 5


assert Tag.CLAMP == PARAM_ITERATIONS, "PARAM issues an iteration for each parameter"


#: Bits of a word of the table.
TABLE_WORD = INT32_BITS


def table_words(params: Features) -> int:
    """Words of the table; the last one is written an iteration after it is read."""
    return table_iterations(params) - 1


def word_bits(params: Features) -> int:
    """Bits of the number of a word of the table."""
    return (table_words(params) - 1).bit_length()


def vector_field(name: str, params: HwParams) -> Field:
    """A field of VECTOR."""
    return next(field for field in layout(Opcode.VECTOR, params) if field.name == name)


def entry_bits(operand: str, params: HwParams) -> int:
    """Bits of the entry of an operand: one more than its base, to see what is beyond its memory."""
    return vector_field(f"{operand}_base", params).bits + 1


#: Members of :func:`iteration_signature` that say whether others count.
FLAGS = ("valid", "live", "last")


def iteration_signature(params: HwParams) -> wiring.Signature:
    """A pass of an iteration, as it goes down the pipeline.

    ``valid``: there is one. ``live``: and it has a result after the reduction, because its
    iteration is the last that is reduced, or sets a parameter. ``part``: which of the passes.
    ``tag``: a :class:`Tag`. ``first``: it is the first that is reduced. ``op``: the operator;
    ``by_power``: it multiplies by a power of two. ``requantized``: there is a post-operation;
    ``tflite``: it rounds as TensorFlow Lite. ``src0``, ``src1``: a bit for each memory, of which
    the operand's is set. ``imm``: the immediate, the limits and the zero point, or which word of
    the table it is. ``tmp``, ``out``: the result is written there, to entry ``dst``. ``last``: the
    last pass of an instruction; ``push``: its tokens.
    """
    return wiring.Signature(
        {
            "valid": Out(1),
            "live": Out(1),
            "part": Out(range(params.vector_passes)),
            "tag": Out(range(len(Tag))),
            "first": Out(1),
            "op": Out(vector_field("op", params).bits),
            "by_power": Out(1),
            "requantized": Out(1),
            "tflite": Out(1),
            "src0": Out(len(SRC0_MEMORIES)),
            "src1": Out(len(SRC1_MEMORIES)),
            "imm": Out(signed(INT32_BITS)),
            "tmp": Out(1),
            "out": Out(1),
            "dst": Out(entry_bits("dst", params)),
            "last": Out(1),
            "push": Out(len(Unit)),
        }
    )


class Pipeline(wiring.Component):
    """Carries what is issued down the stages.

    Attributes
    ----------
    issued : the pass that is issued in this cycle;  stages : the pass that is in each stage
    """

    def __init__(self, params: HwParams):
        iteration = iteration_signature(params)
        super().__init__({"issued": In(iteration), "stages": Out(iteration).array(len(Stage))})

    def elaborate(self, platform) -> Module:
        m = Module()
        for name in self.issued.signature.members:
            value = getattr(self.issued, name)
            for stage in Stage:
                if stage is not Stage.ISSUE:
                    flag = name in FLAGS
                    value = delayed(m, value, f"{name}_{stage.name.lower()}", flag=flag)
                m.d.comb += getattr(self.stages[stage], name).eq(value)
        return m
