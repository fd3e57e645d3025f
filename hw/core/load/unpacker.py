"""From packed weights to weights: 4 bits and a scale become 8 bits."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ....isa.encoding import INT8_BITS
from ....isa.params import HwParams
from .transfer import beats_layout

#: Bits of a packed weight, and of a scale less one.
PACKED_BITS = 4


class Unpacker(wiring.Component):
    """Multiplies the weights of a packed beat by the scales of their rows, in the cycle after the
    beat came: the scales are chosen before the register, and multiplied behind it.

    Attributes
    ----------
    first : the first beat of the tile, which has scales
    data, number : a beat, if one comes, and which one of its tile it is
    written : the beat, a cycle later
    weights : its weights, in that cycle
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {
                "first": In(params.bus_bits),
                "data": In(params.bus_bits),
                "number": In(beats_layout(params)["more_beats"].shape),
                "written": In(params.bus_bits),
                "weights": Out(2 * params.bus_bits),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        count = 2 * self.params.bus_bytes  # weights of a beat
        row = min(self.params.block_in, count)  # those of them that share a scale
        products = []
        for n, scale in enumerate(self._scales(m, count)):
            multiples = self._multiples(m, scale, n)
            weights = self.written.word_select(n, row * PACKED_BITS)
            products += [
                _product(weights.word_select(i, PACKED_BITS), *multiples) for i in range(row)
            ]
        m.d.comb += self.weights.eq(Cat(products))
        return m

    def _scales(self, m: Module, count: int) -> list[Value]:
        """The scales less one of the rows that a beat of ``count`` weights has."""
        params = self.params
        headers = [self.first]
        for number in range(1, params.packed_header_bytes // params.bus_bytes):
            header = Signal(params.bus_bits, name=f"header_{number}", reset_less=True)
            with m.If(self.number == number):
                m.d.sync += header.eq(self.data)
            headers.append(header)
        rows = max(1, count // params.block_in)
        beats = max(1, params.block_in // count)  # of a row
        all_scales = Cat(headers)[: params.block_out * PACKED_BITS]
        bits = (params.block_out // rows - 1).bit_length()
        place = (self.number - len(headers))[beats.bit_length() - 1 :][:bits]
        chosen = all_scales.word_select(place, rows * PACKED_BITS)
        return [chosen.word_select(n, PACKED_BITS) for n in range(rows)]

    def _multiples(self, m: Module, scale: Value, n: int) -> tuple[Signal, Signal, Signal]:
        """A scale, three times and minus it, from registers."""
        once = Signal(PACKED_BITS + 1, name=f"once_{n}", reset_less=True)
        thrice = Signal(PACKED_BITS + 2, name=f"thrice_{n}", reset_less=True)
        minus = Signal(signed(PACKED_BITS + 1), name=f"minus_{n}", reset_less=True)
        plain = scale + 1
        m.d.sync += [once.eq(plain), thrice.eq(plain + (plain << 1)), minus.eq(-plain)]
        return once, thrice, minus


def _product(weight: Value, once: Value, thrice: Value, minus: Value) -> Value:
    """A weight of two's complement times a scale, 8 bits, by two of its bits at a time. Synthesis
    would give ``*`` a multiplier of the FPGA."""
    low = Mux(weight[1], Mux(weight[0], thrice, once << 1), Mux(weight[0], once, 0))
    high = Mux(weight[3], Mux(weight[2], minus, minus << 1), Mux(weight[2], once, 0))
    return (low + (high << 2))[:INT8_BITS]
