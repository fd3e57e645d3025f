"""The register file of ``isa/regmap.py`` behind a simple synchronous port, and the counters that it
shows.
"""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ...isa.params import HwParams
from ...isa.regmap import (  # fmt: skip
    CAUSES,
    CONTROL_RESET,
    CONTROL_START,
    COUNTERS,
    OFFSETS,
    REGISTER_BITS,
    REGISTERS,
)

#: Bits of a register's byte address: there is room beyond the last register.
ADDR_BITS = 10


def port_signature() -> wiring.Signature:
    """Register access, seen from the host: byte address, write strobe and data; read data in the
    same cycle.
    """
    return wiring.Signature(
        {
            "addr": Out(ADDR_BITS),
            "write": Out(1),
            "wdata": Out(REGISTER_BITS),
            "rdata": In(REGISTER_BITS),
        }
    )


class Regs(wiring.Component):
    """Attributes
    ----------
    port : the host's access
    start, reset : strobes, in the cycle after the write
    program_hash, program_addr, insn_count : as written
    values : what the readable registers show, by name (``value_<name>``)
    cause, values_of : the cause that the address selects, and each unit's counter of it
    """

    def __init__(self, params: HwParams):
        self.params = params
        elsewhere = {"config_hash", *(name for names in COUNTERS for name in names)}
        self._shown = [r for r in REGISTERS if r.access == "r" and r.name not in elsewhere]
        self._kept = [r for r in REGISTERS if r.access == "rw"]
        super().__init__(
            {
                "port": In(port_signature()),
                "start": Out(1),
                "reset": Out(1),
                **{r.name: Out(REGISTER_BITS) for r in self._kept},
                **{f"value_{r.name}": In(REGISTER_BITS) for r in self._shown},
                "cause": Out(range(len(CAUSES))),
                "values_of": In(REGISTER_BITS).array(len(COUNTERS)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        control = self.port.write & (self.port.addr == OFFSETS["control"])
        # Registered: reset reaches every register of the core, which the port's timing should not.
        m.d.sync += [
            self.start.eq(control & (self.port.wdata == CONTROL_START)),
            self.reset.eq(control & (self.port.wdata == CONTROL_RESET)),
        ]
        with m.Switch(self.port.addr):
            with m.Case(OFFSETS["config_hash"]):
                m.d.comb += self.port.rdata.eq(int(self.params.hash, 16))
            for register in self._shown:
                with m.Case(register.offset):
                    m.d.comb += self.port.rdata.eq(getattr(self, f"value_{register.name}"))
            for register in self._kept:
                kept = Signal(REGISTER_BITS, name=f"kept_{register.name}")
                m.d.comb += getattr(self, register.name).eq(kept)
                with m.Case(register.offset):
                    m.d.comb += self.port.rdata.eq(kept)
                    with m.If(self.port.write):
                        m.d.sync += kept.eq(self.port.wdata)
            for names, value in zip(COUNTERS, self.values_of, strict=True):
                with m.Case(*(OFFSETS[name] for name in names)):
                    m.d.comb += self.port.rdata.eq(value)
        with m.Switch(self.port.addr):
            for code, names in enumerate(zip(*COUNTERS, strict=True)):
                with m.Case(*(OFFSETS[name] for name in names)):
                    m.d.comb += self.cause.eq(code)
        return m


class CauseCounters(wiring.Component):
    """Attributes
    ----------
    counting : there is a cycle to count
    cause : why it passed, an index of ``CAUSES``
    shown, value : a cause, and its counter in the same cycle; all are 0 after a reset
    """

    def __init__(self) -> None:
        cause = In(range(len(CAUSES)))
        value = Out(REGISTER_BITS)
        super().__init__({"counting": In(1), "cause": cause, "shown": cause, "value": value})

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.storage = memory = Memory(
            shape=unsigned(REGISTER_BITS), depth=len(CAUSES), init=[]
        )
        write = memory.write_port()
        # An entry of the memory counts only if its cause has occurred since the reset.
        seen = Signal(len(CAUSES))

        def count(cause: Signal):
            read = memory.read_port(domain="comb")
            m.d.comb += read.addr.eq(cause)
            return Mux(seen.bit_select(cause, 1), read.data, 0)

        m.d.comb += [
            self.value.eq(count(self.shown)),
            write.addr.eq(self.cause), write.en.eq(self.counting),
            write.data.eq(count(self.cause) + 1),
        ]  # fmt: skip
        with m.If(self.counting):
            m.d.sync += seen.bit_select(self.cause, 1).eq(1)
        return m
