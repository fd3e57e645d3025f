"""Nine seeded bugs, each of which a check must catch: ``make mutants``, or
``python -m tests.mutants NAME ...`` for those whose name contains a NAME.

A check that cannot fail proves nothing. Every mutant is a bug of the kind that hardware and
compilers have, planted while the RTL is elaborated (or in a function of the simulator or compiler),
never in a file. A mutant survives where the check that ought to see it sees nothing; then this
script exits with 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib.wiring import Component, Out
from vdla.hw import core as core_module
from vdla.hw import gemm as gemm_module
from vdla.hw import vector as vector_module
from vdla.hw.core import Core
from vdla.hw.gemm import Gemm
from vdla.hw.load import Load
from vdla.hw.store import Store
from vdla.hw.token import TokenBank
from vdla.hw.vector import Vector
from vdla.hw.verilog import core_verilog
from vdla.isa.check import check
from vdla.isa.depend import insert_tokens
from vdla.isa.encoding import layout
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Gemm as GemmInsn
from vdla.isa.insn import Insn, Param
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.opcodes import Opcode, Units
from vdla.isa.params import HwParams
from vdla.isa.program import Program
from vdla.isa.regmap import CONTROL_RESET, OFFSETS
from vdla.isa.status import Status
from vdla.sim import gemm as sim_gemm
from vdla.sim import random_programs, toolchain
from vdla.sim.core import simulate
from vdla.sim.random_programs import random_program
from vdla.sim.result import SimResult
from vdla.sim.rtl import RtlSimulator
from vdla.sim.timing import GEMM_DEPTH
from vdla.sim.verify import verify

#: The smallest legal buffers: builds in seconds, and everything waits for everything.
PARAMS = HwParams(
    block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=8, uop_depth=8, par_depth=4,
    tmp_depth=8, out_depth=8, max_burst_beats=8, queue_depth=2, fetch_depth=2,
    loads_in_flight=1, stores_in_flight=1,
)  # fmt: skip
MEMORY = MEMORY_PRESETS["vta"]
PROGRAMS = 20
#: A mutant that hangs is caught after this many cycles.
HANG_CYCLES = 200_000

Path = tuple[str | int, ...]


# ---- bugs in the RTL, at the ports of a block


def altered(
    block: type[Component], change: Callable[[Module, Any, Any], dict[Path, Value]]
) -> type[Component]:
    """A block with the same ports around the true one, all passed through but those that
    ``change(module, outer, inner)`` returns a value for (by the port's path).
    """

    class Altered(block):
        def elaborate(self, platform: object) -> Module:
            m = Module()
            m.submodules.inner = inner = block(self.params)
            changed = change(m, self, inner)
            inside = {path: port for path, _, port in inner.signature.flatten(inner)}
            for path, member, port in self.signature.flatten(self):
                out = member.flow == Out
                target, source = (port, inside[path]) if out else (inside[path], port)
                m.d.comb += Value.cast(target).eq(changed.get(path, Value.cast(source)))
            return m

    return Altered


def _fields(word: Value, opcode: Opcode) -> dict[str, Value]:
    """The bit fields of an encoded instruction, in order; ``rest`` is what lies above."""
    parts, lsb = {}, 0
    for field in layout(opcode, PARAMS):
        parts[field.name] = word[lsb : lsb + field.bits]
        lsb += field.bits
    return parts | {"rest": word[lsb:]}


def _insn_word(outer: Any, parts: dict[str, Value]) -> dict[Path, Value]:
    """The instruction port of a unit, with another encoded word."""
    payload = outer.unit.insn.payload
    shape = payload.shape()
    fields = [
        Cat(*parts.values()) if name == "word" else Value.cast(payload[name]) for name, _ in shape
    ]
    return {("unit", "insn", "payload"): Cat(*fields)}


def swap_strides(_m: Module, outer: Any, _inner: Any) -> dict[Path, Value]:
    """The tensor core takes inner strides for outer ones."""
    parts = _fields(Value.cast(outer.unit.insn.payload.word), Opcode.GEMM)
    for name in ("acc", "inp", "wgt"):
        outer_name, inner_name = f"{name}_outer", f"{name}_inner"
        parts[outer_name], parts[inner_name] = parts[inner_name], parts[outer_name]
    return _insn_word(outer, parts)


def invert_padding(_m: Module, outer: Any, _inner: Any) -> dict[Path, Value]:
    """Padding entries hold the complement of ``pad_value``."""
    parts = _fields(Value.cast(outer.unit.insn.payload.word), Opcode.LOAD)
    return _insn_word(outer, parts | {"pad_value": ~parts["pad_value"]})


def end_late(m: Module, _outer: Any, inner: Any) -> dict[Path, Value]:
    """The tensor core reports its end, and pushes its tokens, a cycle too late."""
    changed: dict[Path, Value] = {}
    for name in ("end", "push"):
        late = Signal(len(getattr(inner.unit, name)), name=f"late_{name}")
        m.d.sync += late.eq(getattr(inner.unit, name))
        changed["unit", name] = late
    return changed


def lose_last_beat(_m: Module, _outer: Any, inner: Any) -> dict[Path, Value]:
    """The last beat of every write burst writes nothing."""
    beat = inner.beat.payload
    fields = [
        Mux(beat.last, 0, beat.strb) if name == "strb" else Value.cast(beat[name])
        for name, _ in beat.shape()
    ]
    return {("beat", "payload"): Cat(*fields)}


# ---- bugs inside a block


def transposed_multiply(m: Module, params: HwParams, x: Value, w: Value, *valid: Value) -> list:
    """Weight tiles are read as [block_in][block_out]."""
    size = params.block
    tile = [[w[8 * (o * size + i) :][:8] for i in range(size)] for o in range(size)]
    return _true_multiply(m, params, x, Cat(tile[i][o] for o in range(size) for i in range(size)),
                          *valid)  # fmt: skip


_true_multiply = gemm_module.multiply


def round_half_up(value: Value, shift: Value) -> Value:
    """Ties go up, not to even."""
    return Mux(shift == 0, value, ((value >> (shift - 1)[:6]) + 1) >> 1)


class TruncatingVector(Vector):
    """Results for ``out`` lose their upper bits; without requantisation nothing saturates."""

    def _requantize(self, m: Module, stages: list[dict], *rest: Any) -> dict:
        blind = [stage | {"out": Signal(name="never")} for stage in stages]
        return super()._requantize(m, blind, *rest)


def reset_all_but_tokens(signal: Signal) -> Callable[[Component], Any]:
    """A reset that forgets the token counters."""
    true_reset = ResetInserter(signal)
    return lambda part: part if isinstance(part, TokenBank) else true_reset(part)


# ---- bugs in a function


def drop_token(insns: list[Insn], params: HwParams, image: dict[int, bytes]) -> list[Insn]:
    """The dependency pass forgets to push one token."""
    ordered = insert_tokens(insns, params, image)
    index = next(i for i, insn in enumerate(ordered) if insn.push)
    mask = int(ordered[index].push)
    ordered[index] = replace(ordered[index], push=Units(mask & (mask - 1)))
    return ordered


# ---- checks: what they found, or None


def _rtl() -> RtlSimulator:
    """The RTL as it is elaborated now, mutant included."""
    toolchain.setup_yosys()
    return RtlSimulator(PARAMS, core_verilog(PARAMS, Core(PARAMS)))


def co_verification() -> str | None:
    """Random programs: reference, SimPy and RTL must agree in every byte and cycle."""
    rtl = _rtl()
    try:
        report = verify(PARAMS, MEMORY, PROGRAMS, rtl=lambda p, d, m: rtl.run(p, d, m, HANG_CYCLES))
    except VdlaError as error:
        return str(error)
    first = report["first_divergence"]
    if first is None and not report["byte_mismatches"] and not report["cycle_mismatches"]:
        return None
    where = " ".join(f"{key} {value}" for key, value in first.items() if key != "text")
    return (
        f"{report['byte_mismatches']} bytes, {report['cycle_mismatches']} cycles differ; "
        f"first: {where}"
    )


def second_run() -> str | None:
    """A program that leaves a token behind, run twice with a reset between: same counters."""
    insns = (
        GemmInsn(uop_begin=0, uop_count=1, outer=50, push=Units.VECTOR),
        Param(par_base=0, pop=Units.GEMM),
        GemmInsn(uop_begin=0, uop_count=1, push=Units.VECTOR),
    )
    program = Program(PARAMS, insns)
    simulator = _rtl()
    library = simulator._library
    handle = library.vdla_new()
    results: list[SimResult] = []
    for _ in range(2):
        library.vdla_write(handle, OFFSETS["control"], CONTROL_RESET)
        results.append(
            simulator._run(library, handle, program, program.dram_image(), MEMORY, HANG_CYCLES, 0.0)
        )
    library.vdla_delete(handle)
    first, second = results
    if first.status != Status.DONE:
        return f"first run: {first.status.name}"
    if (first.cycles, first.counters) == (second.cycles, second.counters):
        return None
    return f"vector counters {first.counters['vector']} become {second.counters['vector']}"


def token_checks() -> str | None:
    """The static checker before the run; both simulators stop with a deadlock that names units."""
    rtl = _rtl()
    for seed in range(PROGRAMS):
        program = random_program(PARAMS, seed)
        found = [f.detail for f in check(program) if f.kind in ("deadlock", "raw", "war")]
        runs = [simulate(program, program.dram_image(), MEMORY)]
        runs.append(rtl.run(program, program.dram_image(), MEMORY, HANG_CYCLES))
        if not found or any(r.status != Status.DEADLOCK or not r.report for r in runs):
            return None
    return f"check: {found[0]}; sim and rtl: {runs[0].report}"


# ---- the list


@dataclass(frozen=True)
class Mutant:
    """One bug: what it is, where it sits, how it is planted, the check that must see it."""

    name: str
    place: str
    plant: Callable[[], AbstractContextManager[object]]
    check: Callable[[], str | None]


def _block(name: str, block: type[Component], change: Callable) -> Callable:
    return lambda: patch.object(core_module, name, altered(block, change))


MUTANTS = (
    Mutant("dropped token", "compiler",
           lambda: patch.object(random_programs, "insert_tokens", drop_token), token_checks),
    Mutant("swapped strides", "rtl gemm", _block("Gemm", Gemm, swap_strides), co_verification),
    Mutant("ignored reset", "rtl core",
           lambda: patch.object(core_module, "ResetInserter", reset_all_but_tokens), second_run),
    Mutant("wrong padding value", "rtl load", _block("Load", Load, invert_padding),
           co_verification),
    Mutant("truncating, not saturating", "rtl vector",
           lambda: patch.object(core_module, "Vector", TruncatingVector), co_verification),
    Mutant("transposed weights", "rtl gemm",
           lambda: patch.object(gemm_module, "multiply", transposed_multiply), co_verification),
    Mutant("off-by-one latency", "rtl gemm", _block("Gemm", Gemm, end_late), co_verification),
    Mutant("off-by-one latency", "sim gemm",
           lambda: patch.object(sim_gemm, "GEMM_DEPTH", GEMM_DEPTH - 1), co_verification),
    Mutant("lost last beat of a burst", "rtl store", _block("Store", Store, lose_last_beat),
           co_verification),
    Mutant("wrong rounding", "rtl vector",
           lambda: patch.object(vector_module, "shift_half_even", round_half_up), co_verification),
)  # fmt: skip


_compile = toolchain.compile_shared


def compile_quickly(*arguments: Any) -> None:
    """The same shared library, hardly optimised."""
    _compile(*arguments, "-O1")


def main() -> int:
    """Run the checks without a bug, then every mutant; 0 if each is caught."""
    rows = []
    for probe in (co_verification, second_run, token_checks):
        found = probe()
        if found is not None:
            print(f"the machine itself fails {probe.__name__}: {found}", file=sys.stderr)
            return 1
    names = sys.argv[1:] or [""]
    for mutant in (m for m in MUTANTS if any(name in m.name for name in names)):
        begun = time.perf_counter()
        # Each mutant's RTL is built for a few thousand cycles only: optimising it does not pay.
        quick = (
            patch.object(toolchain, "compile_shared", compile_quickly)
            if mutant.place.startswith("rtl")
            else nullcontext()
        )
        with mutant.plant(), quick:
            found = mutant.check()
        rows.append(found is not None)
        verdict = "caught" if found is not None else "SURVIVED"
        seconds = time.perf_counter() - begun
        print(f"{mutant.name:28}{mutant.place:12}{verdict:10}{seconds:6.1f} s  {found or ''}",
              flush=True)  # fmt: skip
    print(f"{sum(rows)} of {len(rows)} mutants caught")
    return 0 if all(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
