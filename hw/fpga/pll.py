"""The numbers of an ECP5 phase-locked loop."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Instance, Signal

from ...isa.errors import VdlaError

#: Limits of the EHXPLLL, in MHz, as Project Trellis has them.
_VCO_MHZ = (400.0, 800.0)
_DETECTOR_MHZ = (3.125, 400.0)
_MAX_DIVIDER = 128


@dataclass(frozen=True)
class Pll:
    """Dividers: ``output = input / refclk_div * feedback_div``; the VCO runs ``output_div`` times
    as fast.
    """

    input_mhz: float
    refclk_div: int
    feedback_div: int
    output_div: int

    @property
    def output_mhz(self) -> float:
        """The frequency that comes out."""
        return self.input_mhz / self.refclk_div * self.feedback_div

    @property
    def vco_mhz(self) -> float:
        """The oscillator's frequency."""
        return self.output_mhz * self.output_div

    def instance(
        self, clock: Signal, output: Signal, locked: Signal, double: Signal | None = None
    ) -> Instance:
        """The primitive, with feedback from its output; ``double`` runs twice as fast and half of
        its period late."""
        phase = self.output_div // 2
        more = {}
        if double is not None:
            div = self.output_div // 2
            late, eighths = divmod(div * 4, 8)  # of a period of the oscillator
            more = {
                "p_CLKOS_ENABLE": "ENABLED", "p_CLKOS_DIV": div, "p_CLKOS_CPHASE": phase + late,
                "p_CLKOS_FPHASE": eighths, "a_FREQUENCY_PIN_CLKOS": f"{2 * self.output_mhz:.6g}",
                "o_CLKOS": double,
            }  # fmt: skip
        return Instance(
            "EHXPLLL",
            p_PLLRST_ENA="DISABLED", p_INTFB_WAKE="DISABLED", p_STDBY_ENABLE="DISABLED",
            p_DPHASE_SOURCE="DISABLED", p_OUTDIVIDER_MUXA="DIVA", p_OUTDIVIDER_MUXB="DIVB",
            p_OUTDIVIDER_MUXC="DIVC", p_OUTDIVIDER_MUXD="DIVD",
            p_CLKI_DIV=self.refclk_div, p_CLKFB_DIV=self.feedback_div, p_FEEDBK_PATH="CLKOP",
            p_CLKOP_ENABLE="ENABLED", p_CLKOP_DIV=self.output_div,
            p_CLKOP_CPHASE=phase, p_CLKOP_FPHASE=0,
            a_FREQUENCY_PIN_CLKI=f"{self.input_mhz:g}",
            a_FREQUENCY_PIN_CLKOP=f"{self.output_mhz:.6g}",
            a_ICP_CURRENT="12", a_LPF_RESISTOR="8", a_MFG_ENABLE_FILTEROPAMP="1",
            a_MFG_GMCREF_SEL="2",
            i_RST=0, i_STDBY=0, i_CLKI=clock, i_CLKFB=output, i_PHASESEL0=0, i_PHASESEL1=0,
            i_PHASEDIR=1, i_PHASESTEP=1, i_PHASELOADREG=1, i_PLLWAKESYNC=0, i_ENCLKOP=0,
            o_CLKOP=output, o_LOCK=locked, **more,
        )  # fmt: skip


def find_pll(input_mhz: float, wanted_mhz: float, doubles: bool = False) -> Pll:
    """The dividers that come closest to a frequency; of several, those with the VCO nearest to the
    middle of its range. ``doubles``: the PLL makes twice the frequency, too.

    Raises VdlaError where none come within 1 %.
    """
    candidates = []
    for refclk_div in range(1, _MAX_DIVIDER + 1):
        if not _DETECTOR_MHZ[0] <= input_mhz / refclk_div <= _DETECTOR_MHZ[1]:
            continue
        feedback_div = round(wanted_mhz * refclk_div / input_mhz)
        if not 1 <= feedback_div <= _MAX_DIVIDER:
            continue
        for output_div in range(1 + doubles, _MAX_DIVIDER + 1, 1 + doubles):
            pll = Pll(input_mhz, refclk_div, feedback_div, output_div)
            if _VCO_MHZ[0] <= pll.vco_mhz <= _VCO_MHZ[1]:
                candidates.append(pll)
    middle = sum(_VCO_MHZ) / 2
    best = min(
        candidates,
        key=lambda p: (abs(p.output_mhz - wanted_mhz), p.refclk_div, abs(p.vco_mhz - middle)),
        default=None,
    )
    if best is None or abs(best.output_mhz - wanted_mhz) > wanted_mhz / 100:
        raise VdlaError(
            f"clock: expected a frequency that a PLL makes from {input_mhz:g} MHz, "
            f"got {wanted_mhz:g} MHz"
        )
    return best
