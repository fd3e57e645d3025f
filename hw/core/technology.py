"""What a core is built from. Values and cycles are the same with every technology; what differs is
the speed of a simulator, or the size and the clock in an FPGA.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from amaranth.hdl import Const, Module, Signal, Value, signed

from ...isa.encoding import INT8_BITS, INT32_BITS
from ...isa.params import HwParams

#: A multiplier array of two pipeline stages. It takes the activations, once for each output, and
#: the weights, and returns batch x block_out sums.
Multiplier = Callable[[Module, HwParams, list[Signal], Signal], list[Signal]]
#: The attribute of registers that hold the same value and are not to be merged by synthesis.
COPY = "copy"


def multiply(m: Module, params: HwParams, x: list[Signal], w: Signal) -> list[Signal]:
    """The multiplier array for simulation: products registered for the next cycle, their sums for
    the one after.

    Everything is as wide as a sum, so that a simulator needs no masks and sign extensions.

    Returns
    -------
    list of Signal
        batch x block_out sums, modulo 2**32.
    """
    sums = []
    size = params.block_in
    for b in range(params.batch):
        for o in range(params.block_out):
            partial = Const(0, INT32_BITS)
            for i in range(size):
                name = f"{b}_{o}_{i}"
                left, right = (
                    Signal(signed(INT32_BITS), name=f"{n}_{name}") for n in ("left", "right")
                )
                product = Signal(INT32_BITS, name=f"product_{name}", reset_less=True)
                m.d.comb += left.eq(x[o].word_select(b * size + i, INT8_BITS).as_signed())
                m.d.comb += right.eq(w.word_select(o * size + i, INT8_BITS).as_signed())
                m.d.sync += product.eq(left * right)
                following = Signal(INT32_BITS, name=f"partial_{name}")
                m.d.comb += following.eq(partial + product)
                partial = following
            total = Signal(INT32_BITS, name=f"sum_{b}_{o}", reset_less=True)
            m.d.sync += total.eq(partial)
            sums.append(total)
    return sums


@dataclass(frozen=True)
class Technology:
    """How a core is built; the default is for simulation.

    Attributes
    ----------
    multiplier : the multiplier array of the tensor core
    enables : registers of the datapath keep their values in cycles without data. This makes a
        simulator faster; in an FPGA every enable is a wire to thousands of registers.
    copies : a register with many readers exists several times, once for each group of neighbours,
        because a wire across an FPGA is slow
    """

    multiplier: Multiplier = multiply
    enables: bool = True
    copies: bool = False

    def when(self, m: Module, live: Value) -> AbstractContextManager[None]:
        """The context of assignments to datapath registers that only count while ``live`` is 1."""
        return m.If(live) if self.enables else nullcontext()


#: The technology of simulators.
SIMULATION = Technology()
