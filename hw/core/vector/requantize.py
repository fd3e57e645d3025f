"""The post-operation of a lane: requantisation with either rounding, or saturation, or nothing."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ....isa.encoding import INT8_MAX, INT8_MIN, INT32_BITS
from ....isa.params import HwParams
from ..technology import SIMULATION, Technology
from .controls import lane_signature
from .kits import SHIFT_BITS
from .logic import any_of, named, register, shift_right
from .parameters import channel_signature, shared_signature, taps_signature
from .stages import Stage

HALF = INT32_BITS // 2
PRODUCT_BITS = 2 * INT32_BITS
STAGES = tuple(stage for stage in Stage if Stage.BIAS <= stage < Stage.WRITE)
#: The powers of two of the right shift in stages COARSE and FINE.
COARSE_STEPS, FINE_STEPS = (32, 16, 8), (4, 2, 1)
FINE_BITS = len(FINE_STEPS)
AMOUNT_BITS = len(COARSE_STEPS) + FINE_BITS
#: A result that needs more bits is clamped, whatever the zero point is.
NEAR_BITS = 11
#: The bits after COARSE from which FINE makes those of NEAR_BITS. Of the bits above, it only
#: matters whether all equal the sign.
KEPT_BITS = NEAR_BITS + sum(FINE_STEPS)


def requantizer_controls(params: HwParams) -> wiring.Signature:
    """The controls of a lane from stage BIAS on."""
    members = lane_signature(params).members
    names = (stage.name.lower() for stage in STAGES)
    return wiring.Signature({name: members[name] for name in names})


class Requantizer(wiring.Component):
    """Stages BIAS to SEND of a lane.

    Attributes
    ----------
    told : controls of the stages
    result : of the reduction
    channels, shared : parameters of the channel of each pass, and of all
    taps : what the lane holds where parameters are captured
    written : the result, in stage WRITE
    """

    def __init__(self, params: HwParams, technology: Technology = SIMULATION):
        self.params, self.technology = params, technology
        super().__init__(
            {
                "told": In(requantizer_controls(params)),
                "result": In(signed(INT32_BITS)),
                "channels": In(channel_signature()).array(params.vector_passes),
                "shared": In(shared_signature()),
                "taps": Out(taps_signature()),
                "written": Out(signed(INT32_BITS)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        product = self._scale(m)
        value, amount = self._high(m, product)
        near, up, plain = self._shift(m, value, amount)
        self._clamp(m, near, up, plain)
        return m

    def _late(self, m: Module, stage: Stage, value, name: str, bits: int) -> Value:
        """The result of a stage, in a register that the next one sees."""
        late = register(name, bits)
        with self.technology.when(m, getattr(self.told, stage.name.lower()).live):
            m.d.sync += late.eq(value)
        return late

    def _parameter(self, name: str, told) -> Value:
        """A parameter of the channel whose pass is in a stage."""
        its = [getattr(channel, name) for channel in self.channels]
        legs = (Mux(told.part == part, value, 0) for part, value in enumerate(its))
        return its[0] if len(its) == 1 else any_of(legs).as_signed()

    def _scale(self, m: Module) -> Value:
        """Stages BIAS to JOIN: the product of 64 bits."""
        told = self.told
        bias = Mux(told.bias.requantized, self._parameter("bias", told.bias), 0)
        biased = self._late(m, Stage.BIAS, self.result + bias, "biased", INT32_BITS)
        left = self._parameter("left", told.scale)
        amount = Mux(told.scale.tflite & (left < 0), (-left)[:SHIFT_BITS], 0)
        scaled = (biased << amount)[:INT32_BITS]
        factor = self._late(m, Stage.SCALE, scaled, "factor", INT32_BITS)
        parameter = self._parameter("multiplier", told.multiply)
        multiplier = Mux(told.multiply.requantized, parameter, 1)
        multiplier = named(m, multiplier, "multiplier", INT32_BITS)
        low, mixed, crossed, high = (
            # The floorplan knows multipliers by these names.
            self._late(m, Stage.MULTIPLY, x * y, f"part{i}{j}", INT32_BITS)
            for i, x in enumerate((factor[:HALF], factor[HALF:].as_signed()))
            for j, y in enumerate((multiplier[:HALF], multiplier[HALF:].as_signed()))
        )
        inner = named(m, mixed + crossed, "inner", PRODUCT_BITS - HALF)
        total = Cat(low, high) + (inner << HALF)
        product = self._late(m, Stage.JOIN, total, "product", PRODUCT_BITS)
        m.d.comb += [
            self.taps.bias.eq(self.result),
            self.taps.left.eq(biased),
            self.taps.multiplier.eq(factor),
            self.taps.shift.eq(product),
        ]
        return product

    def _high(self, m: Module, product: Value) -> tuple[Value, Value]:
        """Stage HIGH: the product, or its high half doubled and rounded to nearest; and the amount
        of the right shift.
        """
        told = self.told.high
        shift = self._parameter("shift", told)
        doubled = product[INT32_BITS - 1 :].as_signed()
        doubled = named(m, doubled, "doubled", INT32_BITS + 2)
        # It saturates for one product, 2**62.
        largest = product[-2] & ~product[-1]
        high = Mux(largest, (1 << INT32_BITS - 1) - 1, doubled + product[INT32_BITS - 2])
        value = self._late(m, Stage.HIGH, Mux(told.tflite, high, product), "value", PRODUCT_BITS)
        right = Mux(shift < 0, 0, shift[:SHIFT_BITS])
        amount = Mux(told.tflite, right, Mux(told.requantized, shift[:AMOUNT_BITS], 0))
        return value, self._late(m, Stage.HIGH, amount, "amount", AMOUNT_BITS)

    def _shift(self, m: Module, value: Value, amount: Value) -> tuple[Value, Value, Value]:
        """Stages COARSE to SATURATE: the shifted value in NEAR_BITS, whether it is rounded up, and
        the value as it was for results that are not requantised.
        """
        # Of the bits that FINE does not see, it only matters whether all equal the sign.
        alike = _all_signs(value, KEPT_BITS - 1, amount[FINE_BITS:])
        near_zero, negative, plain = alike, value[-1], value[:INT32_BITS]
        value, dropped = shift_right(m, value, Const(0, 2), amount, COARSE_STEPS, keep=KEPT_BITS)
        value = self._late(m, Stage.COARSE, value, "value_fine", KEPT_BITS)
        dropped = self._late(m, Stage.COARSE, dropped, "dropped_fine", 2)
        amount = self._late(m, Stage.COARSE, amount[:FINE_BITS], "amount_fine", FINE_BITS)
        for stage in (Stage.COARSE, Stage.FINE):
            after = Stage(stage + 1).name.lower()
            near_zero = self._late(m, stage, near_zero, f"near_zero_{after}", 1)
            negative = self._late(m, stage, negative, f"negative_{after}", 1)
            plain = self._late(m, stage, plain, f"plain_{after}", INT32_BITS)
        value, dropped = shift_right(m, value, dropped, amount, FINE_STEPS)
        value = self._late(m, Stage.FINE, value, "value_saturate", KEPT_BITS)
        dropped = self._late(m, Stage.FINE, dropped, "dropped_saturate", 2)
        half, below = dropped[1], dropped[0]
        tie = Mux(self.told.saturate.tflite, ~negative, value[0])
        up = self._late(m, Stage.SATURATE, half & (below | tie), "up", 1)
        signs = value[NEAR_BITS - 1 :]
        fits = near_zero & (signs.all() | ~signs.any())
        beyond = Cat((~negative).replicate(NEAR_BITS - 1), negative)
        near = Mux(fits, value[:NEAR_BITS], beyond)
        near = self._late(m, Stage.SATURATE, near, "near", NEAR_BITS)
        plain = self._late(m, Stage.SATURATE, plain, "plain_round", INT32_BITS)
        m.d.comb += self.taps.clamp.eq(plain)
        return near, up, plain

    def _clamp(self, m: Module, near: Value, up: Value, plain: Value) -> None:
        """Stages ROUND to SEND: the zero point, the limits, the result."""
        requantized, shared, told = self.told.round.requantized, self.shared, self.told.clamp

        def rounded_plus(parameter: Value, otherwise: int, name: str) -> Value:
            """The rounded value plus a parameter, or plus a number if it is not requantised."""
            offset = Mux(requantized, parameter, otherwise)
            # One adder: the carry of the lowest bits is the rounding.
            total = Cat(Const(1, 1), near).as_signed() + Cat(up, offset).as_signed()
            return named(m, total, f"doubled_{name}", NEAR_BITS + 3) >> 1

        total = rounded_plus(shared.zero_point, 0, "rounded")
        above_lo = rounded_plus(shared.zero_less_lo, -INT8_MIN, "above_lo")
        beyond = rounded_plus(shared.zero_less_beyond, -INT8_MAX - 1, "beyond")
        rounded = self._late(m, Stage.ROUND, total, "rounded", NEAR_BITS + 1)
        under = self._late(m, Stage.ROUND, above_lo < 0, "under", 1)
        over = self._late(m, Stage.ROUND, beyond >= 0, "over", 1)
        plain = self._late(m, Stage.ROUND, plain, "plain_clamp", INT32_BITS)
        clamped = Mux(under, told.low, Mux(over, told.top, rounded))
        result = Mux(told.saturates, clamped, plain)
        final = self._late(m, Stage.CLAMP, result, "final", INT32_BITS)
        m.d.comb += self.written.eq(self._late(m, Stage.SEND, final, "written", INT32_BITS))


def _all_signs(value: Value, start: int, eighths: Value) -> Value:
    """Whether the bits of a signed value from ``start`` plus 8 times ``eighths`` on are equal."""
    alike = Const(1, 1)
    suffixes: list[Value] = [alike] * 2 ** len(eighths)
    for k in reversed(range(len(suffixes))):
        bits = value[start + 8 * k : start + 8 * k + 8]
        alike = alike & (bits == value[-1].replicate(len(bits)))
        suffixes[k] = alike
    return Cat(suffixes).bit_select(eighths, 1)
