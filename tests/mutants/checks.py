"""The checks that must see a mutant: each returns what it found, or None."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from vdla.hw.core.verilog import core_verilog
from vdla.isa.check import check
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Gemm, Load, Param, Store, Uop, encode_uop
from vdla.isa.memory import MEMORY_PRESETS, MemoryParams
from vdla.isa.opcodes import Units
from vdla.isa.params import HwParams
from vdla.isa.program import Program
from vdla.isa.reference import run as run_reference
from vdla.isa.regmap import CONTROL_RESET, OFFSETS
from vdla.isa.status import Status
from vdla.runtime.result import SimResult
from vdla.sim.model.core import simulate
from vdla.sim.rtl import toolchain
from vdla.sim.rtl.driver import HangError, RtlSimulator
from vdla.sim.verify.campaign import Simulator, compare, verify
from vdla.sim.verify.random_programs import random_program

from ..campaign.configurations import ODD
from ..campaign.programs import tmp_chains, token_stream
from ..compiler.building import build_for

ROOT = Path(__file__).parents[2]
#: Builds in seconds, and is large enough for every rule: bursts cross pages, transfers overlap,
#: entries of tmp are far apart.
PARAMS = HwParams(
    block_in=4, block_out=4, queue_depth=2, fetch_depth=2, loads_in_flight=2, stores_in_flight=2,
    token_bits=4, **ODD,
)  # fmt: skip
#: The same with a vector unit of half the lanes.
PASSES = replace(PARAMS, vector_passes=2)
#: The same with a table.
TABLE = replace(PARAMS, vector_table=1)
#: The same with sliding windows.
WINDOW = replace(PARAMS, vector_window=3)
MEMORY = MEMORY_PRESETS["vta"]
#: One burst at a time, a beat every third cycle.
NARROW = replace(MEMORY, outstanding=1, cycles_per_beat=3)
PROGRAMS = 20
#: A mutant that hangs is caught after this many cycles.
HANG_CYCLES = 100_000


def build_rtl(params: HwParams = PARAMS) -> RtlSimulator:
    """The RTL as it is elaborated now, mutant included; what cannot be built is no mutant."""
    toolchain.setup_yosys()
    simulator = RtlSimulator(params, core_verilog(params))
    simulator.build()
    return simulator


@cache
def true_rtl(params: HwParams = PARAMS) -> RtlSimulator:
    """The RTL without a mutant, for mutants that are planted elsewhere."""
    return build_rtl(params)


# ---- co-verification -----------------------------------------------------------------------------


def _differences(rtl: RtlSimulator) -> str | None:
    """Directed programs and random ones: all three must agree in every byte and cycle."""

    def run(program: Program, dram: np.ndarray, memory: MemoryParams) -> SimResult:
        return rtl.run(program, dram, memory, HANG_CYCLES)

    try:
        return _directed_differ(rtl.params, run) or _random_differ(rtl.params, run)
    except VdlaError as error:  # a model left its memories
        return str(error)


def _directed_differ(params: HwParams, run: Simulator) -> str | None:
    for directed in (tmp_chains, token_stream):
        program = directed(params)
        found = compare(program, program.dram_image(), MEMORY, run)["first_divergence"]
        if found is not None:
            return f"{directed.__name__}: {found['what']}, {_sides(found)}"
    return None


def _random_differ(params: HwParams, run: Simulator) -> str | None:
    for memory, seed in product((MEMORY, NARROW), range(PROGRAMS)):
        found = verify(params, memory, 1, seed, rtl=run)["first_divergence"]
        if found is not None:
            where = f"program {seed}, instruction {found['instruction']} of {found['unit']}"
            return f"{where}: {found['what']}, {_sides(found)}"
    return None


def _sides(found: dict[str, Any]) -> str:
    return " ".join(f"{n} {found[n]}" for n in ("reference", "sim", "rtl") if n in found)


def rtl_differs() -> str | None:
    """A mutant of the RTL against the others."""
    return _differences(build_rtl())


def passes_differ() -> str | None:
    """The same where vectors take several passes."""
    return _differences(build_rtl(PASSES))


def table_differs() -> str | None:
    """A mutant of the SimPy model or of the reference where there is a table."""
    return _differences(true_rtl(TABLE))


def window_differs() -> str | None:
    """The same where windows slide."""
    return _differences(true_rtl(WINDOW))


def sim_differs() -> str | None:
    """A mutant of the SimPy model or of the reference against the true RTL."""
    return _differences(true_rtl())


# ---- directed programs on the RTL ----------------------------------------------------------------


def second_run() -> str | None:
    """A program that leaves a token behind, run twice with a reset between: same counters."""
    insns = (
        Gemm(uop_begin=0, uop_count=1, outer=50, push=Units.VECTOR),
        Param(par_base=0, pop=Units.GEMM),
        Gemm(uop_begin=0, uop_count=1, push=Units.VECTOR),
    )
    program = Program(PARAMS, insns)
    simulator = build_rtl()
    library = simulator._library()
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


def _stops() -> dict[str, tuple[Program, Status, int | None]]:
    """Programs that the core must refuse or stop: what they do, status, instruction."""
    plain = Gemm(uop_begin=0, uop_count=1)
    far = Uop(acc=PARAMS.acc_depth - 1, inp=0, wgt=0)
    load = Load(memory="uop", base=0, dram_addr=0, x_size=1, push=Units.GEMM)
    beyond = replace(plain, inner=2, acc_inner=1, pop=Units.LOAD)
    flood = (replace(plain, push=Units.VECTOR),) * 16
    waits = Load(memory="inp", base=0, dram_addr=0, x_size=1, pop=Units.STORE)
    store = Store(base=0, dram_addr=64, x_size=1, push=Units.LOAD)
    image = {0: encode_uop(far, PARAMS)}
    foreign = replace(PARAMS, loads_in_flight=3)
    return {
        "micro-op beyond acc": (
            Program(PARAMS, (load, beyond), image, {}, 4096),
            Status.ADDRESS,
            1,
        ),
        "16 tokens of 4 bits": (Program(PARAMS, flood), Status.TOKEN_OVERFLOW, 15),
        "behind a full queue": (Program(PARAMS, (waits,) * 4 + (store,)), Status.DEADLOCK, 0),
        "another configuration": (Program(foreign, (plain,)), Status.BAD_CONFIG, None),
    }


def wrong_stops() -> str | None:
    """Each program of :func:`_stops` stops with its status at its instruction."""
    rtl = build_rtl()
    for name, (program, status, index) in _stops().items():
        try:
            result = rtl.run(program, program.dram_image(), MEMORY, HANG_CYCLES)
        except HangError as error:
            return f"{name}: {error}"
        if (result.status, result.error_index) != (status, index):
            return (
                f"{name}: {result.status.name} at {result.error_index}, "
                f"not {status.name} at {index}"
            )
    return None


# ---- compiler ------------------------------------------------------------------------------------


def missing_tokens() -> str | None:
    """The static checker before the run; both simulators stop with a deadlock that names units."""
    found = ""
    for seed in range(3):
        program = random_program(PARAMS, seed)
        findings = [f.detail for f in check(program) if f.kind == "deadlock"]
        runs = [simulate(program, program.dram_image(), MEMORY)]
        runs.append(true_rtl().run(program, program.dram_image(), MEMORY, HANG_CYCLES))
        if not findings or any(r.status != Status.DEADLOCK or not r.report for r in runs):
            return None
        found = f"check: {findings[0]}; sim and rtl: {runs[0].report}"
    return found


def unordered() -> str | None:
    """The static checker finds a hazard in random programs that the dependency pass ordered."""
    for seed in range(PROGRAMS):
        for finding in check(random_program(PARAMS, seed)):
            if finding.kind in ("raw", "war", "deadlock", "tokens"):
                return f"program {seed}: {finding.detail}"
    return None


#: Little of everything: tiles, micro-ops that are reloaded, tails.
TIGHT = HwParams(
    block_in=8, block_out=8, inp_depth=150, wgt_depth=77, acc_depth=66, uop_depth=20,
    par_depth=31, tmp_depth=37, out_depth=65,
)  # fmt: skip


@cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    """One image, and the logits that ONNX Runtime computes for it."""
    import onnxruntime

    models = ROOT / "examples" / "models"
    images = np.load(models / "digits_test.npz")["x"][:1]
    session = onnxruntime.InferenceSession(
        str(models / "digits_int8.onnx"), providers=["CPUExecutionProvider"]
    )
    return images, np.asarray(session.run(None, {"image": images})[0])


def wrong_digits() -> str | None:
    """The digits network, compiled, on the reference: the logits of ONNX Runtime."""
    images, expected = _digits()
    try:
        model = build_for("sim", ROOT / "examples" / "models" / "digits_int8.onnx", TIGHT, MEMORY)
        (logits,) = model.run([images], lambda program, dram: run_reference(program, dram))
    except VdlaError as error:
        return str(error)
    wrong = int((np.asarray(logits) != expected).sum())
    return f"{wrong} of {expected.size} logits differ" if wrong else None


# ---- tests that exist ----------------------------------------------------------------------------

# The first counterexample will do.
settings.register_profile(
    "mutants", deadline=None, derandomize=True, database=None,
    phases=(Phase.explicit, Phase.generate),
)  # fmt: skip


@dataclass(frozen=True)
class Tests:
    """The first of some tests that fails, and whether it is of ``make test`` or ``make more``."""

    nodes: tuple[str, ...]

    def __call__(self) -> str | None:
        recorder = _Recorder()
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
        # Hypothesis is imported here already.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        nodes = [f"{ROOT}/tests/{node}" for node in self.nodes]
        arguments = [*options, "--rootdir", str(ROOT), "--hypothesis-profile=mutants", *nodes]
        said = io.StringIO()
        before = set(sys.modules)
        with redirect_stdout(said), redirect_stderr(said):
            code = pytest.main(arguments, plugins=[recorder])
        # Modules of tests keep what they made once; the next mutant must see its own.
        for name in set(sys.modules) - before:
            if name.startswith("tests."):
                del sys.modules[name]
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise RuntimeError(f"pytest {self.nodes}: {code!r}\n{said.getvalue()}")
        return recorder.failed


@dataclass
class _Recorder:
    """A pytest plugin that remembers the first failure. The tests of ``make test`` run first."""

    failed: str | None = field(default=None)

    @pytest.hookimpl(trylast=True)  # when all marks are there
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: item.get_closest_marker("more") is not None)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and self.failed is None:
            crash = getattr(report.longrepr, "reprcrash", None)
            what = crash.message.splitlines()[0] if crash else report.when
            part = "more" if "more" in report.keywords else "test"
            self.failed = f"make {part}: {report.nodeid.rpartition('::')[2]}: {what}"


#: Checks that are no tests of a room; `test_checks.py` makes one of each, in `make more`.
DIRECTED: tuple[Callable[[], str | None], ...] = (
    rtl_differs, passes_differ, table_differs, window_differs, sim_differs, second_run, wrong_stops,
    missing_tokens, unordered, wrong_digits,
)  # fmt: skip


def tests(*nodes: str) -> Callable[[], str | None]:
    """Tests by node, below ``tests/``."""
    return Tests(nodes)
