"""The VDLA core: units, queues, tokens, scratchpads and registers, joined."""

from __future__ import annotations

from collections.abc import Mapping

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ...isa.opcodes import READERS, Unit
from ...isa.params import MEMORIES, HwParams
from ...isa.regmap import CAUSES, REGISTER_BITS
from ...isa.status import Status
from .dma import FETCH_ID, LOAD_ID, RESP_OKAY, ReadArbiter, axi_signature
from .fetch import Fetch
from .gemm import Gemm
from .layouts import INDEX_BITS, queued_insn
from .load import Load
from .queue import Queue
from .regs import CauseCounters, Regs, port_signature
from .scratchpad import Scratchpad
from .store import Store
from .technology import SIMULATION, Technology
from .token import TokenBank
from .vector import Vector

#: Read ports of the scratchpads: as many as the units that read them need.
READ_PORTS = {name: len(readers) for name, readers in READERS.items()} | {"tmp": 2}
#: Bits of the number of a unit's instructions that have started and not ended. These are at most a
#: few more than its pipeline has stages, or than the transfers that it may have in flight.
_IN_FLIGHT_BITS = 8
_UNITS = len(Unit)


class Core(wiring.Component):
    """Attributes
    ----------
    axi : the AXI4 master port
    regs : register access
    started, ended : per unit, an instruction starts or ends in this cycle (for traces)
    running : the core runs
    """

    def __init__(
        self,
        params: HwParams,
        technology: Technology = SIMULATION,
        blocks: Mapping[str, wiring.Component] | None = None,
    ):
        self.params, self.technology = params, technology
        #: Components in the place of fetch, load, gemm, vector or store.
        self.blocks = blocks or {}
        super().__init__(
            {
                "axi": Out(axi_signature(params)),
                "regs": In(port_signature()),
                "started": Out(_UNITS),
                "ended": Out(_UNITS),
                "running": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        params = self.params
        m.submodules.regs = regs = Regs(params)
        connect(m, flipped(self.regs), regs.port)
        reset = ResetInserter(regs.reset)
        makers = {
            "fetch": lambda: Fetch(params), "load": lambda: Load(params),
            "gemm": lambda: Gemm(params, self.technology),
            "vector": lambda: Vector(params, self.technology), "store": lambda: Store(params),
            "tokens": lambda: TokenBank(params), "arbiter": lambda: ReadArbiter(params),
        }  # fmt: skip
        parts = {name: self.blocks.get(name) or make() for name, make in makers.items()}
        for name, part in parts.items():
            m.submodules[name] = reset(part)
        queues = [Queue(queued_insn(params), params.queue_depth) for _ in Unit]
        for unit, queue in zip(Unit, queues, strict=True):
            m.submodules[f"{unit.name.lower()}_queue"] = reset(queue)
        self._memories(m, parts)
        self._bus(m, parts)
        units = [parts[unit.name.lower()].unit for unit in Unit]
        self._dispatch(m, parts, queues, units)
        self._control(m, regs, parts, queues, units)
        return m

    def _memories(self, m: Module, parts: dict) -> None:
        load, gemm, vector, store = (parts[unit.name.lower()] for unit in Unit)
        ports = {
            "inp": (load.inp, [gemm.inp, vector.inp]),
            "wgt": (load.wgt, [gemm.wgt]),
            "uop": (load.uop, [gemm.uop]),
            "par": (load.par, [vector.par]),
            "acc": (gemm.acc_write, [gemm.acc, vector.acc]),
            "tmp": (vector.tmp_write, [vector.tmp0, vector.tmp1]),
            "out": (vector.out_write, [store.out]),
        }
        for name in MEMORIES:
            write, reads = ports[name]
            m.submodules[name] = memory = Scratchpad(name, self.params, READ_PORTS[name])
            connect(m, write, memory.write)
            for port, read in zip(memory.read, reads, strict=True):
                connect(m, read, port)

    def _bus(self, m: Module, parts: dict) -> None:
        axi, fetch, load, store = self.axi, parts["fetch"], parts["load"], parts["store"]
        arbiter = parts["arbiter"]
        connect(m, fetch.request, arbiter.fetch)
        connect(m, load.request, arbiter.load)
        granted = arbiter.o.payload
        m.d.comb += [
            axi.arvalid.eq(arbiter.o.valid),
            arbiter.o.ready.eq(axi.arready),
            axi.araddr.eq(granted.burst.addr),
            axi.arlen.eq(granted.burst.beats - 1),
            axi.arid.eq(granted.id),
            fetch.beat_valid.eq(axi.rvalid & (axi.rid == FETCH_ID)),
            fetch.beat.eq(axi.rdata),
            load.beat.valid.eq(axi.rvalid & (axi.rid == LOAD_ID)),
            load.beat.payload.eq(axi.rdata),
            axi.rready.eq(Mux(axi.rid == LOAD_ID, load.beat.ready, 1)),
            axi.awvalid.eq(store.address.valid),
            store.address.ready.eq(axi.awready),
            axi.awaddr.eq(store.address.payload.addr),
            axi.awlen.eq(store.address.payload.beats - 1),
            axi.wvalid.eq(store.beat.valid),
            store.beat.ready.eq(axi.wready),
            axi.wdata.eq(store.beat.payload.data),
            axi.wstrb.eq(store.beat.payload.strb),
            axi.wlast.eq(store.beat.payload.last),
            axi.bready.eq(1),
            store.response.eq(axi.bvalid),
            store.response_error.eq(axi.bresp != RESP_OKAY),
        ]

    def _dispatch(self, m: Module, parts: dict, queues: list[Queue], units: list) -> None:
        fetch, tokens = parts["fetch"], parts["tokens"]
        for unit in Unit:
            connect(m, fetch.o[unit], queues[unit].i)
            connect(m, queues[unit].o, units[unit].insn)
            m.d.comb += [
                units[unit].available.eq(tokens.available[unit]),
                tokens.pop[unit].eq(units[unit].pop),
                tokens.push[unit].eq(units[unit].push),
            ]

    def _control(
        self, m: Module, regs: Regs, parts: dict, queues: list[Queue], units: list
    ) -> None:
        """Start, end, errors, deadlock, counters."""
        fetch = parts["fetch"]
        status, error_index = Signal(Status), Signal(INDEX_BITS)
        running = status == Status.RUNNING
        cycles = Signal(REGISTER_BITS)
        error, index_of_error, sound = self._errors(m, parts, units)
        for unit in Unit:
            m.d.comb += [
                self.started[unit].eq(units[unit].start & sound),
                self.ended[unit].eq(units[unit].end & sound),
            ]
        in_flight = [Signal(_IN_FLIGHT_BITS, name=f"in_flight_{u.name}") for u in Unit]
        ended = [Signal(INDEX_BITS, name=f"ended_{u.name}") for u in Unit]
        for unit in Unit:
            m.d.sync += in_flight[unit].eq(in_flight[unit] + units[unit].start - units[unit].end)
            m.d.sync += ended[unit].eq(ended[unit] + units[unit].end)
        empty = [~queue.o.valid for queue in queues]
        still = Cat(count == 0 for count in in_flight).all()
        lacking = [unit.waiting != 0 for unit in units]
        idle = fetch.done & still & Cat(empty).all()
        # A deadlock does not pass, so the signals that show it are registered first.
        held, lacked, bare = Signal(), Signal(_UNITS), Signal(_UNITS)
        m.d.sync += [
            held.eq(still & (fetch.done | fetch.blocked)),
            lacked.eq(Cat(lacking)),
            bare.eq(Cat(empty)),
        ]
        stuck = held & lacked.any() & (bare | lacked).all()
        m.d.comb += [self.running.eq(running), fetch.enable.eq(running)]
        with m.If(running):
            m.d.sync += cycles.eq(cycles + 1)
            with m.If(idle):
                m.d.sync += status.eq(Status.DONE)
            with m.If(stuck):
                m.d.sync += status.eq(Status.DEADLOCK)
                m.d.sync += error_index.eq(_first_waiting(queues, lacked))
            with m.If(error != Status.IDLE):
                m.d.sync += [status.eq(error), error_index.eq(index_of_error)]
            # Without delay: the last instruction may push the token that is one too many. The index
            # is 0, because the counters belong to no instruction.
            with m.If(parts["tokens"].overflow):
                m.d.sync += [status.eq(Status.TOKEN_OVERFLOW), error_index.eq(0)]
        m.d.comb += [
            fetch.addr.eq(regs.program_addr),
            fetch.count.eq(regs.insn_count),
        ]
        with m.If(regs.start & (status == Status.IDLE)):
            with m.If(regs.program_hash != int(self.params.hash, 16)):
                m.d.sync += status.eq(Status.BAD_CONFIG)
            with m.Else():
                m.d.comb += fetch.start.eq(1)
                m.d.sync += status.eq(Status.RUNNING)
        waiting = Cat(unit.waiting for unit in units)
        waiting_late = Signal.like(waiting)  # who waits is known late in a cycle
        m.d.sync += waiting_late.eq(waiting)
        self._counters(m, regs, running & ~regs.reset, units, in_flight)
        m.d.comb += [
            regs.value_status.eq(status),
            regs.value_error_index.eq(error_index),
            regs.value_cycles.eq(cycles),
            regs.value_waiting.eq(waiting_late),
            regs.value_dispatched.eq(fetch.index),
            *(getattr(regs, f"value_{u.name.lower()}_ended").eq(ended[u]) for u in Unit),
        ]
        with m.If(regs.reset):
            m.d.sync += [status.eq(Status.IDLE), error_index.eq(0), cycles.eq(0)]
            m.d.sync += [s.eq(0) for s in (*in_flight, *ended)]

    def _errors(self, m: Module, parts: dict, units: list) -> tuple[Signal, Signal, Value]:
        """The error of two cycles ago, its instruction, and whether there was no error since.
        Errors appear at the end of long paths, so they stop the core two cycles late; traces leave
        those cycles out.
        """
        axi, fetch = self.axi, parts["fetch"]
        seen = [(u.error != Status.IDLE, u.error, u.error_index) for u in (fetch, *units)]
        bus, bus_index = Signal(), Signal(INDEX_BITS, reset_less=True)
        m.d.sync += [
            bus.eq(axi.rvalid & axi.rready & (axi.rresp != RESP_OKAY)),
            bus_index.eq(Mux(axi.rid == LOAD_ID, parts["load"].receiving, fetch.receiving)),
        ]
        error = Signal(Status)
        index = Signal(INDEX_BITS, name="index_of_error", reset_less=True)
        m.d.sync += error.eq(Status.IDLE)
        for strikes, status, its in seen:
            with m.If(strikes):
                m.d.sync += [error.eq(status), index.eq(its)]
        with m.If(bus):
            m.d.sync += [error.eq(Status.BUS), index.eq(bus_index)]
        strikes = Cat(strikes for strikes, _, _ in seen).any() | bus | parts["tokens"].overflow
        return error, index, ~strikes & (error == Status.IDLE)

    def _counters(self, m: Module, regs: Regs, running, units: list, in_flight: list) -> None:
        """For every cycle exactly one of a unit's counters advances. They are complete in the cycle
        after the last one.
        """
        counting = Signal()
        m.d.sync += counting.eq(running)
        for unit in Unit:
            ports, name = units[unit], unit.name.lower()
            moves_data = unit in (Unit.LOAD, Unit.STORE)
            stalled = in_flight[unit] != 0 if moves_data else ports.stalled
            # Counted a cycle late, because what a unit does is known at the end of long paths. The
            # first of these that happened is the cause.
            happened = [
                ("busy", ports.busy), ("stalled", stalled), ("busy", ports.start),
                *((f"token_{other.name.lower()}", ports.waiting[other]) for other in Unit),
            ]  # fmt: skip
            late = Signal(len(happened), name=f"{name}_happened")
            m.d.sync += late.eq(Cat(each for _, each in happened))
            counters = ResetInserter(regs.reset)(CauseCounters())
            m.submodules[f"{name}_causes"] = counters
            m.d.comb += [
                counters.counting.eq(counting), counters.shown.eq(regs.cause),
                regs.values_of[unit].eq(counters.value), counters.cause.eq(CAUSES.index("empty")),
            ]  # fmt: skip
            for place, (cause, _) in reversed(list(enumerate(happened))):
                with m.If(late[place]):
                    m.d.comb += counters.cause.eq(CAUSES.index(cause))


def _first_waiting(queues: list[Queue], lacking: list):
    """Index of the earliest instruction that waits for a token.

    All pairs are compared at once, because the waiting units are known late in a cycle, and the
    indices early.
    """
    indices = [queue.o.payload.index for queue in queues]
    first = 0
    for unit, mine in enumerate(indices):
        beaten = Cat(
            lacks & (other < mine)
            for lacks, other in zip(lacking, indices, strict=True)
            if other is not mine
        ).any()
        first |= Mux(lacking[unit] & ~beaten, mine, 0)
    return first
