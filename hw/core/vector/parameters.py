"""The parameters of requantisation, which PARAM sets.

Their values come down the pipeline as vectors that are not requantised, and each is captured in the
stage that uses it. So parameters change between two vectors without a bubble.
"""

from __future__ import annotations

from typing import NamedTuple

from amaranth.hdl import Module, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ....isa.encoding import INT8_BITS, INT8_MAX, INT8_MIN, INT32_BITS
from ....isa.params import HwParams
from ..pipeline import delayed
from .stages import Stage, Tag, iteration_signature


class Capture(NamedTuple):
    """A parameter of a channel: the stage that uses it, and the iteration that brings it."""

    name: str
    stage: Stage
    tag: Tag


#: SHIFT is used twice: a negative one shifts to the left, before the multiplication.
CAPTURES = (
    Capture("bias", Stage.BIAS, Tag.BIAS),
    Capture("left", Stage.SCALE, Tag.SHIFT),
    Capture("multiplier", Stage.MULTIPLY, Tag.MULTIPLIER),
    Capture("shift", Stage.HIGH, Tag.SHIFT),
)
CLAMP = Capture("clamp", Stage.ROUND, Tag.CLAMP)


def taps_signature() -> wiring.Signature:
    """The values of a lane in the stages of the captures, by the captures' names."""
    return wiring.Signature(
        {capture.name: Out(signed(INT32_BITS)) for capture in (*CAPTURES, CLAMP)}
    )


def channel_signature() -> wiring.Signature:
    """The parameters of a channel."""
    return wiring.Signature({capture.name: Out(signed(INT32_BITS)) for capture in CAPTURES})


def shared_signature() -> wiring.Signature:
    """The parameters that all channels share: limits and zero point; the zero point less ``lo``,
    and less the first value beyond ``hi``.
    """
    difference = signed(INT8_BITS + 2)
    return wiring.Signature(
        {
            "zero_point": Out(signed(INT8_BITS)),
            "lo": Out(signed(INT8_BITS), init=INT8_MIN),
            "hi": Out(signed(INT8_BITS), init=INT8_MAX),
            "zero_less_lo": Out(difference, init=-INT8_MIN),
            "zero_less_beyond": Out(difference, init=-INT8_MAX - 1),
        }
    )


class Parameters(wiring.Component):
    """Captures the parameters.

    Attributes
    ----------
    stages : the pass that is in each stage
    taps : of the lanes that compute the first row of a vector
    channels, shared : the parameters
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {
                "stages": In(iteration_signature(params)).array(len(Stage)),
                "taps": In(taps_signature()).array(params.block // params.vector_passes),
                "channels": Out(channel_signature()).array(params.block),
                "shared": Out(shared_signature()),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        for part in range(self.params.vector_passes):
            for capture in CAPTURES:
                with m.If(self._takes(m, capture, part)):
                    for lane, taps in enumerate(self.taps):
                        channel = self.channels[lane * self.params.vector_passes + part]
                        value = getattr(taps, capture.name)
                        m.d.sync += getattr(channel, capture.name).eq(value)
        with m.If(self._takes(m, CLAMP, 0)):
            limits = self.taps[0].clamp
            zero, lo, hi = (limits[INT8_BITS * n :][:INT8_BITS].as_signed() for n in range(3))
            m.d.sync += [
                self.shared.zero_point.eq(zero),
                self.shared.lo.eq(lo),
                self.shared.hi.eq(hi),
                self.shared.zero_less_lo.eq(zero - lo),
                self.shared.zero_less_beyond.eq(zero - hi - 1),
            ]
        return m

    def _takes(self, m: Module, capture: Capture, part: int):
        """Whether the pass in the capture's stage brings the parameter; known a cycle ahead."""
        before = self.stages[capture.stage - 1]
        its = before.valid & (before.tag == capture.tag) & (before.part == part)
        return delayed(m, its, f"takes_{capture.name}_{part}", flag=True)
