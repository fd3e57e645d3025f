"""Tile sizes for the accelerator: what fits the scratchpads, and of that what a simple cost model
likes best.

Three loop orders are considered. *weights*: output channels outside; the weights of a tile of them
stay on chip while all pixels pass. *pixels*: pixels outside; the input of a tile of them stays
while all output channels pass. *stream*: nothing stays, input channels pass in chunks, output
channels are outside. An operator delivers rows first when all channels of some pixels come before
other pixels; then one that does so, too, can follow it closely.

The busiest unit bounds an operator. Tilings are tried in the order of that bound, and each is
replayed tile by tile: units work in order, wait for their operands and for a free buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Literal

from ....isa.errors import VdlaError
from ....isa.memory import MemoryParams
from ....isa.params import HwParams

#: Cycles that a load or vector instruction and a burst of a store cost beyond their work, and from
#: the last use of a buffer to the first request for its next contents; for the cost model only.
INSN_CYCLES, BURST_CYCLES, TURN_CYCLES = 8, 5, 16

#: Cycles that a cycle of the load unit costs the operators beside this one, and those that a tile
#: does whose products the vector unit takes over between its other work.
OTHERS, TAKEOVER_CYCLES = 1 / 16, 16

Order = Literal["weights", "pixels", "stream"]


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
    #: Whether a kernel of one row leaves out the rows between those of its stride.
    skips_rows: bool = True
    #: int8 numbers whose sum a weight is.
    parts: int = 1
    #: Results at every place, each with weights and parameters of its own, which lie side by side;
    #: and by how much the windows of the last of them are further on than those of the first.
    phases: int = 1
    shift_h: int = 0
    shift_w: int = 0

    def input_rows(self, rows: int) -> int:
        """Input rows that are loaded for so many output rows."""
        if self.kh == 1 and self.skips_rows:
            return rows
        return (rows - 1) * self.stride_h + (self.kh - 1) * self.dilation_h + 1 + self.shift_h

    def input_cols(self, cols: int) -> int:
        """Input columns, first to last, that so many output columns read."""
        return (cols - 1) * self.stride_w + (self.kw - 1) * self.dilation_w + 1 + self.shift_w

    @property
    def taps(self) -> int:
        """Products of an element's channel block with weights: a kernel's positions and parts."""
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

    def rows_first(self, shape: ConvShape) -> bool:
        """Whether all channels of some pixels are computed before those of others."""
        oc_tiles, pixel_tiles, _ = _counts(self, shape)
        return pixel_tiles > 1 and (self.order == "pixels" or oc_tiles == 1)


def even_sizes(extent: int) -> list[int]:
    """Candidate tile sizes: those that cut an extent into tiles as even as possible."""
    return sorted({-(-extent // parts) for parts in range(1, extent + 1)})


@lru_cache(maxsize=1024)
def plan_conv(
    shape: ConvShape,
    params: HwParams,
    memory: MemoryParams,
    vthreads: int,
    rows_first: bool | None = None,
    beside: bool = False,
) -> Tiling:
    """The fastest tiling whose buffers, ``vthreads`` copies of each, fit the scratchpads; of those
    that deliver rows first, or do not, where that is given and possible. ``beside`` says whether
    the vector unit has operators of its own at the same time.

    Raises VdlaError when not even single rows and blocks fit, naming the scratchpad that is too
    small.
    """
    bounded: list[tuple[float, Tiling, _Work]] = []
    for tile in _tilings(shape):
        if not _misfit(tile, shape, params, vthreads):
            work = _work(tile, shape, params, memory)
            bounded.append((work.bound_cycles, tile, work))
    if not bounded:
        reason = _misfit(Tiling(1, 1, 1, 1, "stream"), shape, params, vthreads)
        raise VdlaError(
            f"convolution {shape.kh}x{shape.kw}: no tile fits with {vthreads} virtual threads, "
            f"{reason}"
        )
    wanted = [c for c in bounded if rows_first is None or c[1].rows_first(shape) == rows_first]
    return _fastest(wanted or bounded, memory, vthreads, TAKEOVER_CYCLES if beside else 0)


@lru_cache(maxsize=1024)
def plan_window(
    shape: ConvShape,
    weighted: bool,
    params: HwParams,
    memory: MemoryParams,
    vthreads: int,
    rows_first: bool = False,
) -> Tiling:
    """The fastest tiling of a pooling or (``weighted``) depthwise convolution on the vector unit,
    where every channel block has its own weights and requantisation parameters, or all share them.
    With ``rows_first``, pixels are outside of channels.

    Raises VdlaError when not even one window fits inp.
    """
    bounded: list[tuple[float, Tiling, _Work]] = []
    for blocks, rows, cols in product(
        even_sizes(shape.oc_blocks), even_sizes(shape.oh), even_sizes(shape.ow)
    ):
        inp = blocks * shape.input_rows(rows) * shape.input_cols(cols)
        par = (shape.taps + 3) * blocks * vthreads if weighted else 3
        results = blocks * rows * cols
        fits = inp * vthreads <= params.inp_depth and results * vthreads <= params.out_depth
        if fits and par <= params.par_depth:
            orders: tuple[Order, ...] = ("weights", "stream") if weighted else ("stream",)
            for order in ("pixels",) if rows_first else orders:
                tile = Tiling(blocks, rows, cols, blocks, order)
                work = _window_work(tile, shape, weighted, params, memory)
                bounded.append((work.bound_cycles, tile, work))
    if not bounded:
        raise VdlaError(
            f"a window of {shape.kh}x{shape.kw} for {vthreads} virtual threads does not fit: inp "
            f"holds {params.inp_depth} entries, par {params.par_depth}"
        )
    return _fastest(bounded, memory, vthreads)


def _fastest(
    bounded: list[tuple[float, Tiling, _Work]],
    memory: MemoryParams,
    vthreads: int,
    takeover_cycles: int = 0,
) -> Tiling:
    """The tiling of the least cost: cycles of its replay, and those that it costs other operators.
    They are tried in the order of the least that they can cost.
    """

    def others(work: _Work) -> float:
        return OTHERS * work.load_cycles + takeover_cycles * work.changes * work.tiles

    candidates = [(bound + others(work), tile, work) for bound, tile, work in bounded]
    best: tuple[float, Tiling] | None = None
    for least, tile, work in sorted(candidates, key=lambda candidate: candidate[0]):
        if best is not None and least >= best[0]:
            break
        cost = _replay(work, memory, vthreads) + others(work)
        if best is None or cost < best[0]:
            best = cost, tile
    assert best is not None
    return best[1]


def _tilings(shape: ConvShape) -> Iterator[Tiling]:
    sizes = product(
        even_sizes(shape.oc_blocks),
        even_sizes(shape.oh),
        even_sizes(shape.ow),
        even_sizes(shape.ic_blocks),
    )
    for oc, rows, cols, ic in sizes:
        yield Tiling(oc, rows, cols, ic, "weights")
        yield Tiling(oc, rows, cols, ic, "pixels")
        yield Tiling(oc, rows, cols, ic, "stream")


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


def _misfit(tile: Tiling, shape: ConvShape, params: HwParams, vthreads: int) -> str:
    """Which scratchpad the tile exceeds, or an empty string."""
    results = tile.oc_blocks * tile.rows * tile.cols * shape.phases
    inp, wgt = (entries * vthreads for entries in _entries(tile, shape))
    par = 3 * tile.oc_blocks * shape.phases * vthreads
    oc_tiles, pixel_tiles, chunks = _counts(tile, shape)
    if tile.order == "weights":
        copies = vthreads if oc_tiles > 1 else 1
        wgt, par = wgt // vthreads * chunks * copies, par // vthreads * copies
    elif tile.order == "pixels":
        inp = inp // vthreads * chunks * (vthreads if pixel_tiles > 1 else 1)
    needs = {
        "acc": results * vthreads,
        # Results leave block by block of channels, through two buffers.
        "out": tile.rows * tile.cols * shape.phases * min(tile.oc_blocks, 2) * vthreads,
        "inp": inp,
        "wgt": wgt,
        "par": par,
    }
    for name, entries in needs.items():
        if entries > params.depth(name):
            return f"{name} needs {entries} entries of {params.depth(name)}"
    uops = tile.ic_blocks * shape.taps * tile.oc_blocks * shape.phases
    if uops > params.uop_depth // 2:
        return f"uop needs {uops} entries of {params.uop_depth // 2}"
    return ""


@dataclass(frozen=True)
class _Work:
    """Cycles that the units need for parts of an operator: ``changes`` groups, each with an operand
    that stays, of ``tiles`` tiles of ``chunks`` steps of ``slices`` blocks of output channels.
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
    #: Of fetching a tile's instructions.
    fetch: float

    @property
    def bound_cycles(self) -> float:
        """What the busiest unit needs for all of it."""
        tiles = self.changes * self.tiles
        gemm = tiles * self.chunks * self.gemm
        others = tiles * max(self.vector, self.store, self.fetch)
        return max(self.load_cycles, gemm, others)

    @property
    def load_cycles(self) -> float:
        """What the load unit needs for all of it."""
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
    # Of every chunk its loads and products; of every block a PARAM, a VECTOR and a STORE.
    weights = tile.oc_blocks if tile.order != "weights" else 0
    insns = chunks * (1 + weights + tile.oc_blocks) + 3 * tile.oc_blocks * shape.phases
    fetch = insns * _fetch_cycles(params, memory)
    return _Work(*counts, staying, inp, wgt, gemm, vector, store, fetch)


def _window_work(
    tile: Tiling, shape: ConvShape, weighted: bool, params: HwParams, memory: MemoryParams
) -> _Work:
    """As :func:`_work`, with the vector unit's iterations in the place of the tensor core's."""
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
    # When each of the buffers is free again, in the order of their use. Threads share the tiles
    # of a group.
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
        # Every group begins with the first thread, whose buffers may be those used last.
        begun = work.tiles % threads
        for buffers in (operands, accumulators, results):
            buffers[:] = buffers[threads - begun :] + buffers[: threads - begun]
    return store + memory.write_latency_cycles


def _read_cycles(rows: int, row_bytes: int, params: HwParams, memory: MemoryParams) -> float:
    """Cycles to load so many rows: the bus moves a beat a cycle, and the memory works on a limited
    number of bursts at once.
    """
    beats = max(1.0, row_bytes / params.bus_bytes) * memory.cycles_per_beat
    bursts = -(-beats // params.max_burst_beats)
    latency = (memory.read_latency_cycles + beats / bursts) / memory.outstanding
    return rows * bursts * max(beats / bursts, latency) + INSN_CYCLES


def _fetch_cycles(params: HwParams, memory: MemoryParams) -> float:
    """Cycles to fetch an instruction: the prefetch buffer is full each time that the memory has
    answered, behind a burst or two of loads.
    """
    beats = params.insn_bytes / params.bus_bytes * memory.cycles_per_beat
    answer = memory.read_latency_cycles + beats * params.fetch_chunk + 2 * params.max_burst_beats
    return max(beats, answer / params.fetch_depth)
