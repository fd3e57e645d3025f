"""Every latency of the machine, in cycles. ``docs/timing.md`` is the contract these numbers belong
to; the RTL realises them, the SimPy model computes with them, and co-verification proves that both
are the same numbers.

An event "in cycle t" is a signal that is high during cycle t; what it changes is visible from cycle
t + 1.
"""

from __future__ import annotations

from .encoding import INT8_BITS, INT32_BITS
from .opcodes import Features
from .vector_ops import TABLE_VALUES

#: Iteration issued in cycle t: its accumulator is written in cycle t + GEMM_DEPTH (after the last
#: iteration, tokens are pushed in that cycle).
GEMM_DEPTH = 8
#: Last pass of an iteration issued in cycle t: tmp or out is written in cycle t + VECTOR_DEPTH
#: (after the last iteration, tokens are pushed in that cycle).
VECTOR_DEPTH = 16
#: Last beat or padding entry consumed in cycle t: the scratchpad is written and tokens are pushed
#: in cycle t + LOAD_END.
LOAD_END = 1
#: Write burst accepted in cycle a: its first data beat is valid in cycle a + STORE_DATA at the
#: earliest.
STORE_DATA = 3
#: Write bursts that the store unit keeps unanswered at most, whatever the memory would take.
STORE_BURSTS = 32
#: Last write response of an instruction in cycle b: tokens are pushed in cycle b + STORE_END.
STORE_END = 1
#: Iterations that a PARAM instruction issues: bias, multiplier, shift, clamp.
PARAM_ITERATIONS = 4
#: The last event of the last instruction in cycle e: the core reports done in cycle e + DONE.
DONE = 2


def table_iterations(params: Features) -> int:
    """Iterations that a TABLE instruction issues: one for each word of the table, and one in which
    the last word is written.
    """
    return TABLE_VALUES * params.vector_table * INT8_BITS // INT32_BITS + 1
