"""What a core can do: measured, kept, and what the planner makes of it on made-up processors."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from vdla.bench.net import Net
from vdla.bench.workloads import TABLE_2
from vdla.compiler.choose.template import Plan
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.ops.blocked.dense import PackedDense
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.common.workload import OperatorWorkload
from vdla.compiler.targets.cpu import core
from vdla.compiler.targets.cpu.core import Core, core_speeds, speeds_of
from vdla.compiler.targets.cpu.graph_code import load_graph_code, on_blocks
from vdla.compiler.targets.cpu.lowering import choose_knobs, new_chooser, templates_of
from vdla.compiler.targets.cpu.processor import Processor, host_processor
from vdla.compiler.targets.cpu.templates.tiles import DenseTiles

AVX512 = tuple(
    f"+{name}"
    for name in ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni")
)
X86 = "x86_64-unknown-linux-gnu"
AVX512F, AVX2 = ("+avx2", "+fma", "+avx512f"), ("+avx2", "+fma")
_KIB = 1 << 10
#: Cores that are known by their makers' manuals: products of a vector in a cycle, the latencies of
#: float32 and of products of four, vectors and elements that are loaded in a cycle, bytes that the
#: second-level cache sends in a cycle (half to three quarters of what the manuals promise); sizes.
PROCESSORS = {
    "zen3": Processor(
        X86, "znver3", AVX2, core=Core(2.0, 4, 4, 2.0, 2.0, 24.0, 32 * _KIB, 512 * _KIB)
    ),
    "zen4": Processor(
        X86, "znver4", AVX512, core=Core(1.0, 4, 4, 1.0, 2.0, 24.0, 32 * _KIB, 1024 * _KIB)
    ),
    "skylake_x": Processor(
        X86, "skylake-avx512", AVX512F,
        core=Core(2.0, 4, 4, 2.0, 2.0, 48.0, 32 * _KIB, 1024 * _KIB),
    ),
    "ice_lake": Processor(
        X86, "icelake-server", AVX512,
        core=Core(2.0, 4, 5, 2.0, 2.0, 48.0, 48 * _KIB, 1280 * _KIB),
    ),
    "sapphire_rapids": Processor(
        X86, "sapphirerapids", (*AVX512, "+amx-tile", "+amx-int8"),
        core=Core(2.0, 4, 5, 2.0, 2.0, 48.0, 48 * _KIB, 2048 * _KIB),
    ),
    "haswell": Processor(
        X86, "haswell", AVX2, core=Core(2.0, 5, 5, 2.0, 2.0, 24.0, 32 * _KIB, 256 * _KIB)
    ),
    "neoverse_n1": Processor(
        "aarch64-unknown-linux-gnu", "neoverse-n1", ("+neon",),
        core=Core(2.0, 4, 4, 2.0, 2.0, 16.0, 64 * _KIB, 1024 * _KIB, 16 * _KIB),
    ),
}  # fmt: skip
#: Products of rows x depth x columns, from transformers of today.
PRODUCTS = (
    (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (197, 768, 3072), (64, 768, 2304),
    (1500, 384, 1536), (512, 512, 512), (128, 256, 1024), (7, 1024, 1024),
)  # fmt: skip
#: Bytes that a product may read from the second-level cache in a cycle: half of what the slowest of
#: large cores sends.
MOST_FAR_BYTES = 24


# ---- measured ------------------------------------------------------------------------------------


@pytest.mark.parametrize("slower", [1.0, 1.3], ids=["alone", "beside another thread"])
def test_speeds_are_whole(slower: float) -> None:
    """From times in nanoseconds. What a core begins in a cycle becomes less beside another thread;
    a latency does not."""
    cycle = 0.3
    times = {
        "multiply": 4 * cycle, "products": 0.5 * cycle * slower, "latency": 4.02 * cycle,
        "loads": 1.06 * cycle * slower, "broadcasts": 0.56 * cycle * slower,
        "dot_latency": 4.97 * cycle, "lines": 1.3 * cycle * slower,
    }  # fmt: skip
    far = 48.0 if slower == 1 else 32.0
    assert Core(**speeds_of(times)) == Core(2.0, 4, 5, 1.0, 2.0, far)
    del times["dot_latency"]
    assert Core(**speeds_of(times)) == Core(2.0, 4, 4, 1.0, 2.0, far)


@pytest.mark.this_machine
def test_the_core_of_this_machine() -> None:
    """Nothing that no processor has."""
    found = host_processor().core
    assert found.products_per_cycle in (0.5, 1, 2, 4) and found.loads_per_cycle in (0.5, 1, 2, 4)
    assert 2 <= found.latency_cycles <= 8 and 2 <= found.dot_latency_cycles <= 8
    assert 4 <= found.l2_bytes_per_cycle <= 64
    assert 16 << 10 <= found.l1_bytes <= 256 << 10 and found.l1_bytes % found.l1_way_bytes == 0
    assert 128 << 10 <= found.l2_bytes <= 64 << 20


def test_speeds_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again where the file is damaged, or for another processor."""
    calls = []

    def measure(machine: Callable, lanes: int, dots: bool) -> dict[str, float]:
        calls.append((lanes, dots))
        return {"products_per_cycle": 2.0, "latency_cycles": 5}

    monkeypatch.setenv("VDLA_CACHE", str(tmp_path))
    monkeypatch.setattr(core, "measured_speeds", measure)
    expected = {"products_per_cycle": 2.0, "latency_cycles": 5}
    for _ in range(2):
        assert core_speeds("a", lambda: None, 8, False) == expected
    assert calls == [(8, False)]
    [kept] = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert core_speeds("a", lambda: None, 8, False) == expected
    core_speeds("b", lambda: None, 16, True)
    assert calls == [(8, False), (8, False), (16, True)]


# ---- planned -------------------------------------------------------------------------------------


def plan(graph: Graph, processor: Processor) -> tuple[str, dict, int]:
    """Operator, knobs and predicted cycles of the only convolution."""
    chooser = new_chooser(processor)
    blocked = on_blocks(graph, processor, chooser)
    [node] = [n for n in blocked.nodes if re.match("Blocked.*(Conv2d|wise|Winograd)", n.op.name)]
    knobs = dict(choose_knobs(blocked, node, processor, chooser))
    choice = chooser.of(node.name)
    assert choice is not None and choice.predicted_cycles is not None
    return node.op.name, knobs, choice.predicted_cycles


def layer(name: str, quantized: bool) -> Graph:
    found = next(layer for layer in TABLE_2 if layer.name == name)
    return run_passes(load_graph(found.model(1, quantized)))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSORS)
def test_plans_of_made_up_processors(name: str, golden: Callable[[str, str], None]) -> None:
    """Of the paper's layers."""
    lines = []
    for found in TABLE_2:
        for quantized in (False, True):
            op, knobs, cycles = plan(layer(found.name, quantized), PROCESSORS[name])
            text = " ".join(f"{key}={value}" for key, value in knobs.items())
            lines.append(f"{found.name} {op} {text} cycles={cycles}\n")
    golden(f"plans_{name}.txt", "".join(lines))


def test_plans_of_products(golden: Callable[[str, str], None]) -> None:
    """Of matrices of float32: the tile, the predicted part of the peak, and bytes from the
    second-level cache in a cycle, of which no tile needs many."""
    lines = []
    for name, processor in PROCESSORS.items():
        [template] = [t for t in templates_of(processor) if isinstance(t, DenseTiles)]
        lanes, per_cycle = processor.vector_lanes, processor.core.products_per_cycle
        for rows, depth, columns in PRODUCTS:
            op, blocks = PackedDense(columns), columns // lanes
            types = (((rows, depth), "float32"), ((blocks, depth, lanes), "float32"))
            workload = OperatorWorkload(op.name, (), types, ((rows, columns), "float32"), op)
            plan = template.plan(workload, {})
            assert isinstance(plan, Plan) and plan.cycles is not None
            peak = rows * depth * blocks / per_cycle / plan.cycles
            far = template.far_bytes_per_cycle(workload, plan.knobs)
            tile = f"{plan.knobs['rows']} x {plan.knobs['blocks']}"
            lines.append(
                f"{name} {rows}x{depth}x{columns}: {tile}, {peak:.0%}, {far:.1f} bytes a cycle\n"
            )
            assert far <= MOST_FAR_BYTES
    golden("products.txt", "".join(lines))


def test_loads_bound_a_tile() -> None:
    """Two units multiply twice as fast as one while loads keep up, which share elements and weights
    in tiles of several blocks; where a core loads little, they decide."""
    graph, two = layer("C4", False), PROCESSORS["ice_lake"]
    _, _, one_cycles = plan(graph, PROCESSORS["zen4"])
    _, knobs, two_cycles = plan(graph, two)
    assert knobs["blocks"] > 1 and 0.5 <= two_cycles / one_cycles <= 0.55
    slow = replace(two.core, broadcasts_per_cycle=0.5, loads_per_cycle=0.5)
    _, _, slow_cycles = plan(graph, replace(two, core=slow))
    assert slow_cycles > 1.5 * two_cycles


def test_sums_wait_for_one_another() -> None:
    """A short reduction has few sums, which are finished while the next ones begin: eight are
    enough for one unit, but two units of latency 5 need ten sums of products of four."""
    sums = {}
    for name in ("zen4", "ice_lake"):
        _, knobs, _ = plan(layer("C3", True), PROCESSORS[name])
        sums[name] = knobs["blocks"] * knobs["width"]
    assert sums["zen4"] <= 8
    assert sums["ice_lake"] >= 10


@pytest.mark.slow
def test_registers_are_enough() -> None:
    for name, most in (("zen4", 32), ("haswell", 16), ("neoverse_n1", 32)):
        processor = PROCESSORS[name]
        assert processor.registers == most
        for found in TABLE_2:
            _, knobs, _ = plan(layer(found.name, False), processor)
            blocks = knobs.get("blocks", 1)
            tile = blocks * knobs.get("rows", 1) * knobs.get("width", knobs.get("columns", 1))
            assert tile <= processor.sums and tile + blocks < most


def test_groups_fill_the_second_level_cache() -> None:
    """Winograd's rows of tiles; and which loop is outside follows from what stays there."""
    graph, processor = layer("C2", False), PROCESSORS["ice_lake"]
    groups, outer = [], []
    for size in (1 << 18, 1 << 20, 1 << 24):
        sized = replace(processor, core=replace(processor.core, l2_bytes=size))
        groups.append(plan(graph, sized)[1]["group"])
        outer.append(plan(layer("C7", False), sized)[1]["outer"])
    assert groups == sorted(groups) and groups[0] < groups[-1]
    assert set(outer) == {"blocks"}  # without a cache each row would read 1.2 MB of weights


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ice_lake", "haswell"])
@pytest.mark.parametrize("quantized", [False, True])
def test_plans_for_other_cores_compute_the_same(name: str, quantized: bool) -> None:
    """On this processor, by the plans for another core: integers to the bit; floats nearly, where
    another algorithm is planned."""
    net = Net("mixed", quantized)
    image = net.conv(net.input(1, 16, 15, 15), 32, 3)
    image = net.conv(net.conv(image, 32, 3, groups=32), 48, 1, 2)
    net.output(net.dense(net.global_average(net.conv(image, 64, 3)), 10))
    graph = run_passes(load_graph(net.model()))
    x = np.random.default_rng(1).normal(0, 2, graph["x"].shape).astype(np.float32)
    [here], [there] = (
        load_graph_code(graph, processor, new_chooser(processor)).run(x)
        for processor in (host_processor(), replace(host_processor(), core=PROCESSORS[name].core))
    )
    np.testing.assert_allclose(there, here, 0 if quantized else 1e-4, 0 if quantized else 1e-5)
    assert np.unique(here).size > 5
