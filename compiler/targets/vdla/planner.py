"""Choose tile sizes for the accelerator: of the tilings that fit the scratchpads, the one that a
simple cost model finds cheapest.

Three loop orders are considered:

- *weights*: the loop over output channels is outside. The weights of a tile of channels stay on
  chip while all pixels pass.
- *pixels*: the loop over pixels is outside. The input of a tile of pixels stays on chip while all
  output channels pass.
- *stream*: the loop over output channels is outside. Nothing stays on chip, and input channels
  pass in chunks.

An operator delivers rows first when it computes all channels of some pixels before it begins other
pixels. An operator behind it that works rows first, too, can then follow it closely.

The work of the busiest unit is a lower bound for an operator's cycles. Tilings are tried in the
order of that bound, and each is replayed tile by tile: a unit works in order and waits for its
operands and for a free buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Literal, get_args

from ....isa.memory import MemoryParams
from ....isa.params import HwParams
from ...choose.space import KnobValue
from .machine import Budget, Context, Machine

#: Estimates for the cost model: additional cycles of a load or vector instruction, additional
#: cycles of a burst of a store, and cycles from the last use of a buffer to the first request for
#: its next contents.
INSN_CYCLES, BURST_CYCLES, TURN_CYCLES = 8, 5, 16

#: What a tiling costs other operators: OTHERS cycles for each cycle in which it keeps the load unit
#: busy, and, where the vector unit has operators of its own, TAKEOVER_CYCLES for each tile whose
#: products the vector unit takes over between its other work.
OTHERS, TAKEOVER_CYCLES = 1 / 16, 16

Order = Literal["weights", "pixels", "stream"]
ORDERS: tuple[Order, ...] = get_args(Order)
#: Knobs with given values, which the planner does not choose: pairs of name and value.
Fixed = tuple[tuple[str, KnobValue], ...]
#: Virtual threads that an operator may have.
VTHREADS = tuple(range(1, 17))


@dataclass(frozen=True)
class ConvShape:
    """A convolution in blocks: channels are counted in blocks of ``HwParams.block``, sizes in
    pixels.
    """

    ic_blocks: int
    oc_blocks: int
    oh: int
    ow: int
    kh: int
    kw: int
    stride_h: int = 1
    stride_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    #: Whether a kernel of one row loads only those input rows that it reads: one per stride.
    skips_rows: bool = True
    #: Number of int8 values that add up to one weight.
    parts: int = 1
    #: Phases of a transposed convolution: results at every place, which lie side by side, each with
    #: its own weights and parameters; and by how many rows and columns the windows of the last
    #: phase are further on than those of the first.
    phases: int = 1
    shift_h: int = 0
    shift_w: int = 0

    def input_rows(self, rows: int) -> int:
        """Input rows that are loaded for ``rows`` output rows."""
        if self.kh == 1 and self.skips_rows:
            return rows
        return (rows - 1) * self.stride_h + (self.kh - 1) * self.dilation_h + 1 + self.shift_h

    def input_cols(self, cols: int) -> int:
        """Input columns from the first to the last one that ``cols`` output columns read."""
        return (cols - 1) * self.stride_w + (self.kw - 1) * self.dilation_w + 1 + self.shift_w

    @property
    def taps(self) -> int:
        """Weights of one channel in a kernel: its positions times ``parts``."""
        return self.kh * self.kw * self.parts


@dataclass(frozen=True)
class Tiling:
    """Output channel blocks, rows and columns of one tile, input channel blocks loaded at a time,
    and the order of the loops over tiles.
    """

    oc_blocks: int
    rows: int
    cols: int
    ic_blocks: int
    order: Order
    vthreads: int

    def rows_first(self, shape: ConvShape) -> bool:
        """Whether all channels of some pixels are computed before those of others."""
        oc_tiles, pixel_tiles, _ = _counts(self, shape)
        return pixel_tiles > 1 and (self.order == "pixels" or oc_tiles == 1)


def even_sizes(extent: int) -> list[int]:
    """Candidate tile sizes: those that cut an extent into tiles as even as possible."""
    return sorted({-(-extent // parts) for parts in range(1, extent + 1)})


@lru_cache(maxsize=1024)
def plan_products(
    shape: ConvShape, context: Context, machine: Machine, fixed: Fixed = ()
) -> tuple[Tiling, int] | str:
    """Find the cheapest tiling of products on the tensor core that has the ``fixed`` knobs.

    Its buffers, one copy for each virtual thread, fit the budget. Where the context asks for rows
    first, or for the opposite, other tilings are considered only if none delivers that.

    Returns the tiling and its predicted cycles. Where no tiling fits, returns a message that says
    which scratchpad is too small.
    """
    vthreads = _vthreads(machine, fixed)
    bounded: list[tuple[float, Tiling, _Work]] = []
    for tile in _with(_tilings(shape, ORDERS, vthreads), fixed):
        if not products_misfit(tile, shape, context.budget):
            work = _work(tile, shape, machine.params, machine.memory)
            bounded.append((work.bound_cycles, tile, work))
    if not bounded:
        least = _least("stream", vthreads, fixed)
        reason = products_misfit(least, shape, context.budget)
        return f"convolution {shape.kh}x{shape.kw}: {_no_tile(least, reason)}"
    wanted = [c for c in bounded if context.rows_first in (None, c[1].rows_first(shape))]
    takeover = TAKEOVER_CYCLES if context.beside else 0
    return _fastest(wanted or bounded, machine.memory, takeover)


@lru_cache(maxsize=1024)
def plan_windows(
    shape: ConvShape,
    weighted: bool,
    context: Context,
    machine: Machine,
    fixed: Fixed = (),
) -> tuple[Tiling, int] | str:
    """As :func:`plan_products`, for pooling or (``weighted``) depthwise convolution on the vector
    unit.

    In a depthwise convolution, every channel block has its own weights and requantisation
    parameters; in pooling, all blocks share one set of parameters. Where the context asks for rows
    first, the loop over pixels is outside the loop over channels.
    """
    vthreads = _vthreads(machine, fixed)
    orders: tuple[Order, ...] = ("weights", "stream") if weighted else ("stream",)
    if context.rows_first:
        orders = ("pixels",)
    if "order" in dict(fixed):
        orders = window_orders(weighted)
    bounded: list[tuple[float, Tiling, _Work]] = []
    for tile in _with(_tilings(shape, orders, vthreads, window=True), fixed):
        if not window_misfit(tile, shape, weighted, context.budget):
            work = _window_work(tile, shape, weighted, machine.params, machine.memory)
            bounded.append((work.bound_cycles, tile, work))
    if not bounded:
        least = _least(orders[-1], vthreads, fixed)
        reason = window_misfit(least, shape, weighted, context.budget)
        return f"a window of {shape.kh}x{shape.kw}: {_no_tile(least, reason)}"
    return _fastest(bounded, machine.memory)


def window_orders(weighted: bool) -> tuple[Order, ...]:
    """The loop orders for windows on the vector unit; order "weights" only where there are any."""
    return ORDERS if weighted else ("pixels", "stream")


def _vthreads(machine: Machine, fixed: Fixed) -> int:
    """The number of virtual threads of all candidates."""
    return int(dict(fixed).get("vthreads", machine.vthreads))


def _least(order: Order, vthreads: int, fixed: Fixed) -> Tiling:
    """The smallest tiling with the fixed knobs."""
    return replace(Tiling(1, 1, 1, 1, order, vthreads), **dict(fixed))  # type: ignore[arg-type]


def _no_tile(least: Tiling, reason: str) -> str:
    return f"no tile fits with {least.vthreads} virtual threads, {reason}"


def _with(tilings: Iterator[Tiling], fixed: Fixed) -> Iterator[Tiling]:
    """Keep the tilings that have the fixed knobs."""
    return (tile for tile in tilings if all(getattr(tile, name) == v for name, v in fixed))


def _fastest(
    bounded: list[tuple[float, Tiling, _Work]], memory: MemoryParams, takeover_cycles: int = 0
) -> tuple[Tiling, int]:
    """Find the tiling of the least cost, and the cycles of its replay. The cost is these cycles and
    those that the tiling costs other operators. Tilings are tried in the order of a lower bound of
    their cost, until that bound reaches the least cost so far.
    """

    def others(work: _Work) -> float:
        return OTHERS * work.load_cycles + takeover_cycles * work.changes * work.tiles

    candidates = [(bound + others(work), tile, work) for bound, tile, work in bounded]
    best: tuple[float, Tiling, float] | None = None
    for least, tile, work in sorted(candidates, key=lambda candidate: candidate[0]):
        if best is not None and least >= best[0]:
            break
        cycles = _replay(work, memory, tile.vthreads)
        cost = cycles + others(work)
        if best is None or cost < best[0]:
            best = cost, tile, cycles
    assert best is not None
    return best[1], round(best[2])


def products_cycles(tile: Tiling, shape: ConvShape, machine: Machine) -> int:
    """The cycles that the cost model predicts for a tiling of products."""
    work = _work(tile, shape, machine.params, machine.memory)
    return round(_replay(work, machine.memory, tile.vthreads))


def window_cycles(tile: Tiling, shape: ConvShape, weighted: bool, machine: Machine) -> int:
    """The cycles that the cost model predicts for a tiling of windows."""
    work = _window_work(tile, shape, weighted, machine.params, machine.memory)
    return round(_replay(work, machine.memory, tile.vthreads))


def row_cycles(
    entries: int, size: int, passes: int, operands: int, vthreads: int, machine: Machine
) -> int:
    """The cycles that the cost model predicts for ``entries`` vectors in tiles of ``size``. For
    each tile, ``operands`` tensors are loaded, and the vector unit passes over it ``passes`` times.
    """
    params, memory = machine.params, machine.memory
    row = ConvShape(1, 1, 1, entries, 1, 1)
    tile = Tiling(1, 1, size, 1, "stream", vthreads)
    inp = operands * _read_cycles(1, size * params.entry_bytes("inp"), params, memory)
    vector = passes * (size + INSN_CYCLES)
    store = _store_cycles(tile, row, params, memory)
    fetch = (operands + passes + 2) * _fetch_cycles(params, memory)
    tiles = -(-entries // size)
    work = _Work(1, tiles, 1, 1, 0.0, inp, 0.0, vector, 0.0, store, fetch)
    return round(_replay(work, memory, vthreads))


def _tilings(
    shape: ConvShape, orders: tuple[Order, ...], vthreads: int, window: bool = False
) -> Iterator[Tiling]:
    """All candidates. A ``window`` has the same channels in its input as in its result."""
    chunks = [0] if window else even_sizes(shape.ic_blocks)
    sizes = (even_sizes(n) for n in (shape.oc_blocks, shape.oh, shape.ow))
    for oc, rows, cols, ic in product(*sizes, chunks):
        for order in orders:
            yield Tiling(oc, rows, cols, ic or oc, order, vthreads)


def _entries(tile: Tiling, shape: ConvShape) -> tuple[int, int]:
    """Entries of inp and wgt that one tile loads for one chunk of input channels."""
    inputs = shape.input_rows(tile.rows) * shape.input_cols(tile.cols)
    return tile.ic_blocks * inputs, tile.oc_blocks * tile.ic_blocks * shape.taps * shape.phases


def _counts(tile: Tiling, shape: ConvShape) -> tuple[int, int, int]:
    """Tiles of output channels and of pixels, and chunks of input channels."""
    pixel_tiles = -(-shape.oh // tile.rows) * -(-shape.ow // tile.cols)
    return (
        -(-shape.oc_blocks // tile.oc_blocks), pixel_tiles, -(-shape.ic_blocks // tile.ic_blocks),
    )  # fmt: skip


def products_misfit(tile: Tiling, shape: ConvShape, budget: Budget) -> str:
    """Which scratchpad a tiling of products exceeds, or an empty string."""
    vthreads = tile.vthreads
    results = tile.oc_blocks * tile.rows * tile.cols * shape.phases
    inp, wgt = (entries * vthreads for entries in _entries(tile, shape))
    par = 3 * tile.oc_blocks * shape.phases * vthreads
    oc_tiles, pixel_tiles, chunks = _counts(tile, shape)
    if tile.order == "weights":
        copies = vthreads if oc_tiles > 1 else 1
        wgt, par = wgt // vthreads * chunks * copies, par // vthreads * copies
    elif tile.order == "pixels":
        inp = inp // vthreads * chunks * (vthreads if pixel_tiles > 1 else 1)
    uop = tile.ic_blocks * shape.taps * tile.oc_blocks * shape.phases
    needs = {
        "acc": (results * vthreads, budget.acc),
        # Results leave block by block of channels, through two buffers.
        "out": (tile.rows * tile.cols * shape.phases * min(tile.oc_blocks, 2) * vthreads,
                budget.out),
        "inp": (inp, budget.inp),
        "wgt": (wgt, budget.wgt),
        "par": (par, budget.par),
        "uop": (uop, budget.uop // 2),
    }  # fmt: skip
    for name, (entries, most) in needs.items():
        if entries > most:
            return f"{name} needs {entries} entries of {most}"
    return ""


def window_misfit(tile: Tiling, shape: ConvShape, weighted: bool, budget: Budget) -> str:
    """Which scratchpad a tiling of windows exceeds, or an empty string."""
    blocks, vthreads = tile.oc_blocks, tile.vthreads
    inputs = shape.input_rows(tile.rows) * shape.input_cols(tile.cols)
    needs = {
        "inp": blocks * inputs * vthreads,
        "out": blocks * tile.rows * tile.cols * vthreads,
        "par": (shape.taps + 3) * blocks * vthreads if weighted else 3,
    }
    for name, entries in needs.items():
        if entries > budget.of(name):
            return f"{name} needs {entries} entries of {budget.of(name)}"
    return ""


@dataclass(frozen=True)
class _Work:
    """The cycles that units need for an operator.

    An operator is ``changes`` groups, each with an operand that stays on chip. A group is ``tiles``
    tiles, a tile is ``chunks`` steps, a step works on ``slices`` blocks of output channels. Loading
    the operand that stays takes ``staying`` cycles for each group; ``inp``, ``wgt`` and ``gemm``
    are cycles for each step; ``vector``, ``store`` and ``fetch`` for each tile.
    """

    changes: int
    tiles: int
    chunks: int
    slices: int
    staying: float
    inp: float
    wgt: float
    gemm: float
    vector: float
    store: float
    #: Cycles to fetch a tile's instructions.
    fetch: float

    @property
    def bound_cycles(self) -> float:
        """Cycles that the busiest unit needs for the whole operator."""
        tiles = self.changes * self.tiles
        gemm = tiles * self.chunks * self.gemm
        others = tiles * max(self.vector, self.store, self.fetch)
        return max(self.load_cycles, gemm, others)

    @property
    def load_cycles(self) -> float:
        """Cycles that the load unit needs for the whole operator."""
        tiles = self.changes * self.tiles
        return self.changes * self.staying + tiles * self.chunks * (self.inp + self.wgt)


def _work(tile: Tiling, shape: ConvShape, params: HwParams, memory: MemoryParams) -> _Work:
    oc_tiles, pixel_tiles, chunks = _counts(tile, shape)
    results = tile.oc_blocks * tile.rows * tile.cols * shape.phases
    inp_entries, wgt_entries = _entries(tile, shape)
    cols = shape.input_cols(tile.cols)
    inp = _read_cycles(inp_entries // cols, cols * params.entry_bytes("inp"), params, memory)
    wgt = _read_cycles(1, wgt_entries * params.entry_bytes("wgt"), params, memory)
    gemm = tile.ic_blocks * shape.taps * results + tile.oc_blocks
    vector = results + INSN_CYCLES * tile.oc_blocks * shape.phases
    store = _store_cycles(tile, shape, params, memory)
    counts = (1, oc_tiles * pixel_tiles, chunks, tile.oc_blocks)
    staying = 0.0
    if tile.order == "weights":
        counts = (oc_tiles, pixel_tiles, chunks, tile.oc_blocks)
        staying, wgt = wgt * chunks, 0.0
    elif tile.order == "pixels":
        counts = (pixel_tiles, oc_tiles, chunks, tile.oc_blocks)
        staying, inp = inp * chunks, 0.0
    # Each chunk has loads and products; each block of results has a PARAM, a VECTOR and a STORE.
    weights = tile.oc_blocks if tile.order != "weights" else 0
    insns = chunks * (1 + weights + tile.oc_blocks) + 3 * tile.oc_blocks * shape.phases
    fetch = insns * _fetch_cycles(params, memory)
    return _Work(*counts, staying, inp, wgt, gemm, vector, store, fetch)


def _window_work(
    tile: Tiling, shape: ConvShape, weighted: bool, params: HwParams, memory: MemoryParams
) -> _Work:
    """As :func:`_work`; ``gemm`` has the vector unit's iterations instead of the tensor core's."""
    channel_tiles, pixel_tiles, _ = _counts(tile, shape)
    rows = tile.oc_blocks * shape.input_rows(tile.rows)
    cols = shape.input_cols(tile.cols)
    inp = _read_cycles(rows, cols * params.entry_bytes("inp"), params, memory)
    # Weights are int8 in memory, parameters int32.
    par_bytes = tile.oc_blocks * (shape.taps * params.block + 3 * params.entry_bytes("par"))
    par = _read_cycles(1, par_bytes, params, memory) + INSN_CYCLES if weighted else 0.0
    iterations = shape.taps * tile.rows * tile.cols
    compute = tile.oc_blocks * (iterations + INSN_CYCLES)
    store = _store_cycles(tile, shape, params, memory)
    fetch = (1 + 2 * weighted + 3 * tile.oc_blocks) * _fetch_cycles(params, memory)
    if tile.order == "weights":
        return _Work(channel_tiles, pixel_tiles, 1, 1, par, inp, 0.0, compute, 0.0, store, fetch)
    tiles = channel_tiles * pixel_tiles
    return _Work(1, tiles, 1, 1, 0.0, inp, par, compute, 0.0, store, fetch)


def _store_cycles(tile: Tiling, shape: ConvShape, params: HwParams, memory: MemoryParams) -> float:
    """Cycles to store a tile's results."""
    results = tile.oc_blocks * tile.rows * tile.cols * shape.phases
    beats = max(1.0, params.entry_bytes("out") / params.bus_bytes) * memory.cycles_per_beat
    rows = tile.oc_blocks * (1 if tile.cols == shape.ow else tile.rows)
    bursts = rows * -(-results * beats // rows // params.max_burst_beats)
    return results * beats + BURST_CYCLES * bursts


def _replay(work: _Work, memory: MemoryParams, vthreads: int) -> float:
    """Cycles of the operator when every unit works in order, waits for what it needs, and reuses a
    buffer ``vthreads`` steps later.
    """
    latency = memory.read_latency_cycles + TURN_CYCLES
    part = 1 / work.slices
    load = gemm = vector = store = fetch = 0.0
    # For each buffer, the cycle in which it is free again, in the order of use. The threads share
    # the tiles of a group.
    stays = [0.0] * vthreads
    threads = min(vthreads, work.tiles)
    operands, accumulators, results = ([0.0] * threads for _ in range(3))
    for _ in range(work.changes):
        load = max(load, stays.pop(0)) + work.staying
        # Weights come block by block, and the first block is enough to begin.
        is_weights = work.wgt == 0.0
        stay_begin = load + latency - (work.staying * (1 - part) if is_weights else 0.0)
        stay_end = load + latency
        for first in range(0, work.tiles, threads):
            # Threads take turns with their chunks, and so finish together.
            done = [accumulators.pop(0) for _ in range(min(threads, work.tiles - first))]
            fetch += len(done) * work.fetch
            for _ in range(work.chunks):
                for thread, free in enumerate(done):
                    load = max(load, operands.pop(0)) + work.inp + work.wgt
                    begin = max(gemm, free, load + latency - work.wgt * (1 - part), stay_begin)
                    # The last block of channels comes after the last of its operands.
                    last = max(load + latency, stay_end) + work.gemm * part
                    gemm = max(begin + work.gemm, last)
                    operands.append(gemm)
                    done[thread] = gemm
            gemm = max(gemm, fetch)
            for computed in done:
                vector = max(vector, results.pop(0)) + work.vector
                vector = max(vector, computed + work.vector * part)
                accumulators.append(vector)
                store = max(store, vector) + work.store
                results.append(store + memory.write_latency_cycles)
        stays.append(gemm)
        # Every group begins with the first thread, so its buffers must come first again.
        begun = work.tiles % threads
        for buffers in (operands, accumulators, results):
            buffers[:] = buffers[threads - begun :] + buffers[: threads - begun]
    return store + memory.write_latency_cycles


def _read_cycles(rows: int, row_bytes: int, params: HwParams, memory: MemoryParams) -> float:
    """Cycles to load ``rows`` rows: the bus moves a beat a cycle, and the memory works on a limited
    number of bursts at once.
    """
    beats = max(1.0, row_bytes / params.bus_bytes) * memory.cycles_per_beat
    bursts = -(-beats // params.max_burst_beats)
    latency = (memory.read_latency_cycles + beats / bursts) / memory.outstanding
    return rows * bursts * max(beats / bursts, latency) + INSN_CYCLES


def _fetch_cycles(params: HwParams, memory: MemoryParams) -> float:
    """Cycles to fetch an instruction. Each answer of the memory fills the prefetch buffer, and it
    waits behind a burst or two of loads.
    """
    beats = params.insn_bytes / params.bus_bytes * memory.cycles_per_beat
    answer = memory.read_latency_cycles + beats * params.fetch_chunk + 2 * params.max_burst_beats
    return max(beats, answer / params.fetch_depth)
