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

There are thousands of tilings, so needs and bounds are computed for all of them together: the sizes
of a :class:`Tiling`, and what follows from them, may be arrays with an element for each tiling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, reduce
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from .....isa.memory import MemoryParams
from .....isa.params import HwParams
from ....choose.space import KnobValue
from ....graph.ops.base import Pair
from ..expressions import Window
from ..machine import Budget, Context, Machine
from .pipeline_model import replayed

#: Loads are scarce where what must be read takes at least this share of the products' cycles. In
#: ResNet-18 they are not (0.32), in ResNet-50 they are (0.39, and 0.35 with joined additions).
SCARCE_SHARE = 1 / 3
#: Estimates for the cost model: additional cycles of a load or vector instruction, additional
#: cycles of a burst of a store, and cycles from the last use of a buffer to the first request for
#: its next contents.
INSN_CYCLES, BURST_CYCLES, TURN_CYCLES = 8, 5, 16
#: Additional cycles of an instruction of a window, measured on tables of all choices.
WINDOW_INSN_CYCLES = 4

#: What a tiling costs other operators: OTHERS cycles for each cycle in which it keeps the load unit
#: busy, SCARCE where the program has much to load (:attr:`~.machine.Context.scarce_loads`); and,
#: where the vector unit has operators of its own, TAKEOVER_CYCLES for each tile whose products the
#: vector unit takes over between its other work.
OTHERS, SCARCE, TAKEOVER_CYCLES = 1 / 16, 1 / 4, 16

#: Passes of the vector unit over results to which an image is added, besides their requantisation.
ADDING_PASSES = 3
#: Instructions for each part of such results that passes tmp: two PARAMs, and a VECTOR for each
#: pass. A block also has the LOAD of an image.
ADDING_INSNS = 6

Order = Literal["weights", "pixels", "stream"]
ORDERS: tuple[Order, ...] = get_args(Order)
#: Knobs with given values, which the planner does not choose: pairs of name and value.
Fixed = tuple[tuple[str, KnobValue], ...]
#: A number; of many tilings, an array with a number for each.
Each = Any
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
    #: Whether a kernel of one place loads only those input columns that it reads.
    skips_cols: bool = False
    #: Number of int8 values that add up to one weight.
    parts: int = 1
    #: Phases of a transposed convolution: results at every place, which lie side by side, each with
    #: its own weights and parameters; and by how many rows and columns the windows of the last
    #: phase are further on than those of the first.
    phases: int = 1
    shift_h: int = 0
    shift_w: int = 0
    #: Whether the blocks of results are groups, each of ``ic_blocks`` blocks of its own.
    grouped: bool = False
    #: Whether the tensor core also sums the weights of each output channel, and the inputs of each
    #: pixel, and the vector unit adds these sums to the products.
    sums_weights: bool = False
    sums_inputs: bool = False
    #: Rows, and columns, of results whose windows see nothing but padding: before the others, and
    #: behind them.
    blank: tuple[Pair, Pair] = ((0, 0), (0, 0))
    #: Products of a sliding window in an iteration, 1 without one. Then kw is a multiple of it.
    sums: int = 1
    #: Whether the weights and parameters of all channels stay in par, and are loaded once.
    resident: bool = False
    #: Entries of tmp that results pass through, some rows of a tile at a time; 0 where they do not.
    through_tmp: int = 0
    #: Whether another image is loaded, and added to the results.
    adds_image: bool = False

    def input_rows(self, rows: int) -> int:
        """Input rows that are loaded for ``rows`` output rows."""
        if self.kh == 1 and self.skips_rows:
            return rows
        return (rows - 1) * self.stride_h + (self.kh - 1) * self.dilation_h + 1 + self.shift_h

    def input_cols(self, cols: int) -> int:
        """Input columns that are loaded for ``cols`` output columns: all from the first to the last
        one that they read, or only those that they read."""
        if self.skips_cols:
            return cols
        return (cols - 1) * self.stride_w + (self.kw - 1) * self.dilation_w + 1 + self.shift_w

    @property
    def taps(self) -> int:
        """Weights of one channel in a kernel: its positions times ``parts``. Those that a window
        uses in one iteration are one."""
        return self.kh * self.kw * self.parts // self.sums

    def window_cols(self, cols: Each) -> Each:
        """Results of a row, whole or not, for which a window on the vector unit takes time."""
        return slide_cols(cols, self.sums)


def slide_cols(cols: Each, sums: int) -> Each:
    """Results of a row for which a window that slides takes time: the first ones, one fewer than
    its sums, are not whole, and come before those of the row."""
    return cols + sums - 1


@dataclass(frozen=True)
class Tiling:
    """Output channel blocks, rows and columns of one tile, input channel blocks loaded at a time,
    and the order of the loops over tiles.
    """

    oc_blocks: Each
    rows: Each
    cols: Each
    ic_blocks: Each
    order: Order
    vthreads: int

    def rows_first(self, shape: ConvShape) -> Each:
        """Whether all channels of some pixels are computed before those of others."""
        oc_tiles, pixel_tiles, _ = _counts(self, shape)
        return (pixel_tiles > 1) & ((oc_tiles == 1) | (self.order == "pixels"))

    def reads_parts(self, shape: ConvShape) -> Each:
        """Whether all channels of some pixels are read before those of others."""
        _, pixel_tiles, _ = _counts(self, shape)
        return (pixel_tiles > 1) & (not shape.grouped)

    def first_pixels(self, shape: ConvShape) -> Each:
        """Pixels, row by row, up to the last one of the first tile."""
        return (self.rows - 1) * shape.ow + self.cols


#: Knobs of a tiling that are sizes, in the order in which candidates are listed.
_SIZES = ("oc_blocks", "rows", "cols", "ic_blocks")


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
    candidates: list[_Candidates] = []
    for tiles in _tilings(shape, product_orders(shape), vthreads, fixed):
        fitting = _pick(tiles, products_fit(tiles, shape, context.budget))
        work = _work(fitting, shape, machine.params, machine.memory)
        waits = context.maker_cycles * fitting.first_pixels(shape) / (shape.oh * shape.ow)
        candidates.append(_Candidates(fitting, work, waits))
    if not any(len(c) for c in candidates):
        least = _least("stream", vthreads, fixed)
        reason = products_misfit(least, shape, context.budget)
        return f"convolution {shape.kh}x{shape.kw}: {_no_tile(least, reason)}"
    if context.rows_first is not None:
        wanted = [c.where(c.tiles.rows_first(shape) == context.rows_first) for c in candidates]
        candidates = wanted if any(len(c) for c in wanted) else candidates
    takeover = TAKEOVER_CYCLES if context.beside else 0
    return _fastest(candidates, machine.memory, _Prices.of(context, machine, takeover))


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
    candidates: list[_Candidates] = []
    for tiles in _tilings(shape, orders, vthreads, fixed, window=True):
        fitting = _pick(tiles, window_fit(tiles, shape, weighted, context.budget))
        work = _window_work(fitting, shape, weighted, machine.params, machine.memory)
        candidates.append(_Candidates(fitting, work, np.zeros(len(fitting.rows))))
    if not any(len(c) for c in candidates):
        least = _least(orders[-1], vthreads, fixed)
        reason = window_misfit(least, shape, weighted, context.budget)
        return f"a window of {shape.kh}x{shape.kw}: {_no_tile(least, reason)}"
    return _fastest(candidates, machine.memory, _Prices.of(context, machine))


def load_price(context: Context) -> float:
    """What a cycle of the load unit costs other operators."""
    return SCARCE if context.scarce_loads else OTHERS


def insn_price(context: Context, machine: Machine) -> float:
    """What an instruction costs other operators: where loads are scarce, what a load of as many
    bytes does, because both come over the same bus."""
    beats = fetch_beats(machine.params, machine.memory)
    return load_price(context) * beats if context.scarce_loads else 0.0


def product_orders(shape: ConvShape) -> tuple[Order, ...]:
    """The loop orders for products. In groups, no output channels share their input, so that none
    can stay for others.
    """
    return ("weights", "stream") if shape.grouped else ORDERS


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


_Record = TypeVar("_Record", "Tiling", "_Work")


def _pick(record: _Record, which: np.ndarray | int) -> _Record:
    """The tilings, or the work, that a mask or an index picks of many; of one index with plain
    numbers.
    """
    values = ((field.name, getattr(record, field.name)) for field in fields(record))
    picked = {name: value[which] for name, value in values if isinstance(value, np.ndarray)}
    if isinstance(which, int):
        picked = {name: value.item() for name, value in picked.items()}
    return replace(record, **picked)


@dataclass(frozen=True)
class _Candidates:
    """Tilings of one order of loops, their work, and the cycles for which the first tile waits for
    the operator that makes its image.
    """

    tiles: Tiling
    work: _Work
    waits: np.ndarray

    def __len__(self) -> int:
        return len(self.tiles.rows)

    def where(self, mask: np.ndarray) -> _Candidates:
        """Some of them."""
        return _Candidates(_pick(self.tiles, mask), _pick(self.work, mask), self.waits[mask])


@dataclass(frozen=True)
class _Prices:
    """What a tiling costs other operators: for a cycle of the load unit, for a cycle in which
    instructions are fetched, and for a tile.
    """

    load: float
    fetch: float
    tile: int

    @classmethod
    def of(cls, context: Context, machine: Machine, tile: int = 0) -> _Prices:
        """The prices for an operator."""
        cycles = _fetch_cycles(machine.params, machine.memory)
        return cls(load_price(context), insn_price(context, machine) / cycles, tile)

    def cost(self, work: _Work) -> Each:
        """What all tiles cost."""
        tiles = work.changes * work.tiles
        return self.load * work.load_cycles + tiles * (self.fetch * work.fetch + self.tile)


def _fastest(
    candidates: Sequence[_Candidates], memory: MemoryParams, prices: _Prices
) -> tuple[Tiling, int]:
    """Find the tiling of the least cost, and the cycles of its replay. The cost is these cycles,
    those for which the first tile waits, and those that the tiling costs other operators. Tilings
    are tried in the order of a lower bound of their cost, until that bound reaches the least cost
    so far.
    """
    besides = [prices.cost(c.work) + c.waits for c in candidates]
    bounds = np.concatenate(
        [c.work.bound_cycles + more for c, more in zip(candidates, besides, strict=True)]
    )
    # Of equal bounds, the smaller tile comes first, then the earlier order of loops.
    sizes = [np.concatenate([getattr(c.tiles, n) for c in candidates]) for n in _SIZES]
    first = np.cumsum([0, *(len(c) for c in candidates)])
    best: tuple[float, Tiling, float] | None = None
    for chosen in np.lexsort((*reversed(sizes), bounds)).tolist():
        if best is not None and bounds[chosen] >= best[0]:
            break
        group = int(np.searchsorted(first, chosen, "right")) - 1
        index = chosen - int(first[group])
        tile = _pick(candidates[group].tiles, index)
        work = _pick(candidates[group].work, index)
        cycles = _replay(work, memory, tile.vthreads).item()
        cost = cycles + besides[group][index]
        if best is None or cost < best[0]:
            best = cost, tile, cycles
    assert best is not None
    return best[1], round(best[2])


def products_cycles(tile: Tiling, shape: ConvShape, machine: Machine) -> int:
    """The cycles that the cost model predicts for a tiling of products."""
    work = _work(tile, shape, machine.params, machine.memory)
    return round(_replay(work, machine.memory, tile.vthreads).item())


def window_cycles(tile: Tiling, shape: ConvShape, weighted: bool, machine: Machine) -> int:
    """The cycles that the cost model predicts for a tiling of windows."""
    work = _window_work(tile, shape, weighted, machine.params, machine.memory)
    return round(_replay(work, machine.memory, tile.vthreads).item())


def products_estimates(tiles: Tiling, shape: ConvShape, machine: Machine) -> dict[str, Each]:
    """What the cost model knows of many tilings of products: the work of each unit, the needs of
    scratchpads, and the cycles of the replay, by name.
    """
    work = _work(tiles, shape, machine.params, machine.memory)
    cycles, floor = _replay(work, machine.memory, tiles.vthreads), _products_floor
    return _estimates(work, _products_needs(tiles, shape), cycles, floor(tiles, shape, machine))


def window_estimates(
    tiles: Tiling, shape: ConvShape, weighted: bool, machine: Machine
) -> dict[str, Each]:
    """As :func:`products_estimates`, for tilings of windows. The vector unit is busy nearly all the
    time, so that tilings differ by little, and the work is that of the mean tile: the planner
    counts the last tile as a full one, which makes 15 rows of 14 in tiles of 5.
    """
    mean, insn = _mean(tiles, shape), WINDOW_INSN_CYCLES
    work = _window_work(tiles, shape, weighted, machine.params, machine.memory, mean, insn)
    cycles, floor = _replay(work, machine.memory, tiles.vthreads), _window_floor
    needs = _window_needs(tiles, shape, weighted)
    return _estimates(work, needs, cycles, floor(tiles, shape, machine))


def _estimates(
    work: _Work, needs: Mapping[str, Each], cycles: Each, floor: Each
) -> dict[str, Each]:
    tiles = work.changes * work.tiles
    steps = tiles * work.chunks
    return {
        **{field.name: getattr(work, field.name) for field in fields(work)},
        **{f"entries of {name}": need for name, need in needs.items()},
        "load of all": work.load_cycles, "gemm of all": steps * work.gemm,
        "vector of all": tiles * work.vector, "store of all": tiles * work.store,
        "fetch of all": tiles * work.fetch, "bound": work.bound_cycles, "cycles": cycles,
        "floor": floor,
    }  # fmt: skip


def _products_floor(tiles: Tiling, shape: ConvShape, machine: Machine) -> Each:
    """Cycles that no program of a tiling can beat: a beat of the bus, a step of the tensor core and
    a vector of results take at least a cycle each. Instructions come over the bus, too: a tile has
    products for each chunk, and each of its blocks of channels is computed and stored by itself.
    """
    params, results = machine.params, shape.oc_blocks * shape.oh * shape.ow * shape.phases
    oc_tiles, pixel_tiles, chunks = _counts(tiles, shape)
    inp = shape.ic_blocks * _least_input(tiles, shape) * params.entry_bytes("inp")
    wgt = shape.oc_blocks * shape.ic_blocks * shape.taps * shape.phases * params.entry_bytes("wgt")
    if shape.grouped:
        loaded = inp * shape.oc_blocks
    else:
        loaded = inp * (1 if tiles.order == "pixels" else oc_tiles)
    loaded = loaded + wgt * (1 if tiles.order == "weights" else pixel_tiles)
    insns = pixel_tiles * (2 * shape.oc_blocks + oc_tiles * chunks)
    loaded = loaded + insns * params.insn_bytes
    steps = shape.ic_blocks * shape.taps * results
    return _floor(loaded, results, steps, machine)


def _window_floor(tiles: Tiling, shape: ConvShape, machine: Machine) -> Each:
    """As :func:`_products_floor`, for windows."""
    results = shape.oc_blocks * shape.oh * shape.ow
    inputs = shape.oc_blocks * _least_input(tiles, shape)
    loaded = inputs * machine.params.entry_bytes("inp")
    return _floor(loaded, results, shape.taps * results, machine)


def _floor(loaded_bytes: Each, results: int, steps: int, machine: Machine) -> Each:
    params, beat = machine.params, machine.memory.cycles_per_beat / machine.params.bus_bytes
    stored = results * params.entry_bytes("out") * beat
    return np.maximum(np.maximum(loaded_bytes * beat, stored), steps)


def _least_input(tiles: Tiling, shape: ConvShape) -> Each:
    """The fewest pixels of a channel that are loaded for all tiles. What lies in the border, which
    is at most as wide as the window on each side, is not loaded.
    """

    def along(extent: int, size: Each, loaded: Callable[[Each], Each], border: int) -> Each:
        whole = (extent - 1) // size
        return np.maximum(whole * loaded(size) + loaded(extent - whole * size) - 2 * border, 1)

    rows_border = (shape.kh - 1) * shape.dilation_h + shape.shift_h
    cols_border = (shape.kw - 1) * shape.dilation_w + shape.shift_w
    rows = along(shape.oh, tiles.rows, shape.input_rows, rows_border)
    return rows * along(shape.ow, tiles.cols, shape.input_cols, cols_border)


@lru_cache(maxsize=1024)
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
    return round(_replay(work, memory, vthreads).item())


def steps_cycles(
    changes: Each, tiles: Each, staying: Each, loaded: Each, gemm: Each, vector: Each, store: Each,
    insns: Each, vthreads: int, machine: Machine,
) -> float:  # fmt: skip
    """The cycles that the cost model predicts for ``changes`` groups of so many tiles. The other
    numbers are cycles of units, and instructions, for each tile; ``staying`` for each group."""
    params, memory = machine.params, machine.memory
    fetch = insns * _fetch_cycles(params, memory)
    work = _Work(changes, tiles, 1, 1, staying, 0.0, loaded, gemm, vector, store, fetch)
    return _replay(work, memory, vthreads).item()


def skips_cols(window: Window, width: int, oc_blocks: int, machine: Machine) -> bool:
    """Whether a kernel of one place loads only those columns of an image of ``width`` columns that
    it reads: where a load of all is scarce beside their products with ``oc_blocks`` blocks of
    weights. Each column is a burst by itself, which a memory that answers late makes slow.
    """
    params, stride = machine.params, window.strides[1]
    if window.kernel != (1, 1) or stride == 1 or any(window.pads):
        return False
    cols, entry = -(-width // stride), params.entry_bytes("inp")
    apart = _read_cycles(cols, entry, params, machine.memory)
    whole = _read_cycles(1, width * entry, params, machine.memory)
    return bool(apart < whole and SCARCE_SHARE * oc_blocks * cols <= whole)


def read_cycles(read_bytes: int, machine: Machine) -> int:
    """Cycles that the bus needs to read so many bytes, operands and instructions together."""
    return round(read_bytes / machine.params.bus_bytes * machine.memory.cycles_per_beat)


def _tilings(
    shape: ConvShape, orders: tuple[Order, ...], vthreads: int, fixed: Fixed, window: bool = False
) -> list[Tiling]:
    """All candidates with the fixed knobs, those of one order together. A ``window`` has the same
    channels in its input as in its result.
    """
    chunks = [0] if window else even_sizes(shape.ic_blocks)
    sizes = [even_sizes(n) for n in (shape.oc_blocks, shape.oh, shape.ow)]
    oc, rows, cols, ic = (a.reshape(-1) for a in np.meshgrid(*sizes, chunks, indexing="ij"))
    made = []
    for order in orders:
        tiles = Tiling(oc, rows, cols, oc if window else ic, order, vthreads)
        legal = np.ones(oc.size, bool)
        for name, value in fixed:
            legal &= getattr(tiles, name) == value
        made.append(_pick(tiles, legal))
    return made


def _entries(tile: Tiling, shape: ConvShape) -> tuple[Each, Each]:
    """Entries of inp and wgt that one tile loads for one chunk of input channels."""
    inputs = shape.input_rows(tile.rows) * shape.input_cols(tile.cols)
    groups = tile.oc_blocks if shape.grouped else 1
    weights = tile.oc_blocks * tile.ic_blocks * shape.taps * shape.phases
    return groups * tile.ic_blocks * inputs, weights


def _counts(tile: Tiling, shape: ConvShape) -> tuple[Each, Each, Each]:
    """Tiles of output channels and of pixels, and chunks of input channels."""
    pixel_tiles = -(-shape.oh // tile.rows) * -(-shape.ow // tile.cols)
    return (
        -(-shape.oc_blocks // tile.oc_blocks), pixel_tiles, -(-shape.ic_blocks // tile.ic_blocks),
    )  # fmt: skip


def _mean(tile: Tiling, shape: ConvShape) -> Tiling:
    """The mean tile, whose sizes are no whole numbers: of 14 rows in tiles of 5, it has 14/3."""
    return replace(
        tile,
        oc_blocks=shape.oc_blocks / -(-shape.oc_blocks // tile.oc_blocks),
        rows=shape.oh / -(-shape.oh // tile.rows),
        cols=shape.ow / -(-shape.ow // tile.cols),
    )


def products_misfit(tile: Tiling, shape: ConvShape, budget: Budget) -> str:
    """Which scratchpad a tiling of products exceeds, or what else is wrong with it, or an empty
    string."""
    misfit = _misfit(_products_needs(tile, shape), budget) or _blank_misfit(tile, shape)
    if _lacks_rows(tile, shape) and not misfit:
        return f"tiles of {tile.rows} rows, of which columns are skipped, do not divide {shape.oh}"
    if misfit or _passes_tmp(tile, shape):
        return misfit
    return f"a tile of {tile.rows} rows of {tile.cols} results does not pass tmp in even parts"


def window_misfit(tile: Tiling, shape: ConvShape, weighted: bool, budget: Budget) -> str:
    """As :func:`products_misfit`, for a tiling of windows."""
    return _misfit(_window_needs(tile, shape, weighted), budget) or _blank_misfit(tile, shape)


def products_fit(tiles: Tiling, shape: ConvShape, budget: Budget) -> np.ndarray:
    """Which of many tilings of products fit the scratchpads and can be loaded: bool [tilings]."""
    fits = _fits(_products_needs(tiles, shape), budget) & ~_has_blank_tile(tiles, shape)
    return fits & ~_lacks_rows(tiles, shape) & _passes_tmp(tiles, shape)


def rows_through_tmp(tile: Tiling, shape: ConvShape) -> int:
    """The most rows of a tile that have room in ``tmp`` and divide its rows evenly; 0 where not
    one has room."""
    return _even_part(tile.rows, _room_in_tmp(tile, shape))


def _room_in_tmp(tiles: Tiling, shape: ConvShape) -> Each:
    """Rows of tiles that have room in ``tmp``, whose entries virtual threads use one after the
    other."""
    return shape.through_tmp // tiles.cols


def _even_part(rows: int, room: int) -> int:
    """The most rows, of those that have room, that divide all rows evenly."""
    return next((count for count in range(min(rows, room), 0, -1) if rows % count == 0), 0)


@np.vectorize(otypes=[bool])
def _in_even_parts(rows: int, room: int) -> bool:
    """Whether rows pass through tmp in at most twice as many parts as there must be."""
    count = _even_part(rows, room)
    return count > 0 and 2 * count >= min(rows, room)


def _passes_tmp(tiles: Tiling, shape: ConvShape) -> np.ndarray:
    """Which tilings have results that pass through tmp, if they must, in parts as large as
    fit, or half."""
    if not shape.through_tmp:
        return np.ones(np.shape(tiles.rows), bool)
    return _in_even_parts(tiles.rows, _room_in_tmp(tiles, shape))


def window_fit(tiles: Tiling, shape: ConvShape, weighted: bool, budget: Budget) -> np.ndarray:
    """As :func:`products_fit`, for many tilings of windows."""
    return _fits(_window_needs(tiles, shape, weighted), budget) & ~_has_blank_tile(tiles, shape)


def _blank_misfit(tile: Tiling, shape: ConvShape) -> str:
    if not _has_blank_tile(tile, shape):
        return ""
    return f"a tile of {tile.rows} x {tile.cols} results would see padding only"


def _has_blank_tile(tile: Tiling, shape: ConvShape) -> np.ndarray:
    """Whether there is a tile that sees nothing but padding, which no load can make: then the first
    or the last one is one."""
    found = np.zeros(np.shape(tile.rows), bool)
    sizes = (tile.rows, shape.oh), (tile.cols, shape.ow)
    for (size, extent), (before, behind) in zip(sizes, shape.blank, strict=True):
        last = extent - (extent - 1) // size * size
        found = found | (size <= before) | (last <= behind)
    return found


def _lacks_rows(tile: Tiling, shape: ConvShape) -> np.ndarray:
    """Whether the last tile has fewer rows of an image whose columns are skipped. Nothing would be
    loaded for the others, but a load whose columns are single entries cannot pad rows."""
    return np.logical_and(shape.skips_cols, shape.oh % tile.rows != 0)


def _misfit(needs: Mapping[str, int], budget: Budget) -> str:
    return _of_tilings(budget).lack(needs)


def _fits(needs: Mapping[str, Each], budget: Budget) -> np.ndarray:
    """Which tilings fit: bool [tilings]."""
    usable = _of_tilings(budget)
    within = (need <= usable.of(name) for name, need in needs.items())
    return reduce(np.logical_and, within)


def _of_tilings(budget: Budget) -> Budget:
    """What a tiling may use. Micro-ops of the next operator are loaded while those of this one are
    in use.
    """
    return replace(budget, uop=budget.uop // 2)


def _products_needs(tile: Tiling, shape: ConvShape) -> dict[str, Each]:
    """Entries of each scratchpad that tilings of products need."""
    vthreads = tile.vthreads
    results = tile.oc_blocks * tile.rows * tile.cols * shape.phases
    inp, wgt = (entries * vthreads for entries in _entries(tile, shape))
    par = 3 * tile.oc_blocks * shape.phases * vthreads
    oc_tiles, pixel_tiles, chunks = _counts(tile, shape)
    if tile.order == "weights":
        copies = np.where(oc_tiles > 1, vthreads, 1)
        wgt, par = wgt // vthreads * chunks * copies, par // vthreads * copies
    elif tile.order == "pixels":
        inp = inp // vthreads * chunks * np.where(pixel_tiles > 1, vthreads, 1)
    uop = tile.ic_blocks * shape.taps * tile.oc_blocks * shape.phases
    # Results leave block by block of channels, through two buffers.
    leaving = tile.rows * tile.cols * shape.phases * np.minimum(tile.oc_blocks, 2)
    of_weights, of_inputs = _sums(tile, shape)
    needs = {
        "acc": (results + of_weights + of_inputs) * vthreads,
        "out": leaving * vthreads,
        "inp": inp + int(shape.sums_weights) + leaving * vthreads * int(shape.adds_image),
        "wgt": wgt + int(shape.sums_inputs),
        "par": par,
        "uop": uop,
    }
    if shape.sums_weights or shape.sums_inputs:
        # With sums of both kinds, products with one of them wait for the other one in tmp.
        waiting = of_inputs if shape.sums_weights else 0
        needs["tmp"] = (of_weights + of_inputs + waiting) * vthreads
        needs["uop"] = uop + tile.oc_blocks * tile.ic_blocks
    return needs


def _sums(tile: Tiling, shape: ConvShape) -> tuple[Each, Each]:
    """Vectors of sums of weights, and of sums of inputs, in one tile."""
    return (
        tile.oc_blocks * int(shape.sums_weights), tile.rows * tile.cols * int(shape.sums_inputs),
    )  # fmt: skip


def _window_needs(tile: Tiling, shape: ConvShape, weighted: bool) -> dict[str, Each]:
    """Entries of each scratchpad that tilings of windows need."""
    blocks, vthreads = tile.oc_blocks, tile.vthreads
    inputs = shape.input_rows(tile.rows) * shape.input_cols(tile.cols)
    par = (shape.taps + 3) * (shape.oc_blocks if shape.resident else blocks * vthreads)
    par = par if weighted else 3
    return {
        "inp": blocks * inputs * vthreads,
        "out": blocks * tile.rows * tile.cols * vthreads,
        "par": par,
    }


@dataclass(frozen=True)
class _Work:
    """The cycles that units need for an operator.

    An operator is ``changes`` groups, each with an operand that stays on chip. A group is ``tiles``
    tiles, a tile is ``chunks`` steps, a step works on ``slices`` blocks of output channels. Loading
    the operand that stays takes ``staying`` cycles for each group; ``inp``, ``wgt`` and ``gemm``
    are cycles for each step; ``vector``, ``store`` and ``fetch`` for each tile.
    """

    changes: Each
    tiles: Each
    chunks: Each
    slices: Each
    staying: Each
    inp: Each
    wgt: Each
    gemm: Each
    vector: Each
    store: Each
    #: Cycles to fetch a tile's instructions.
    fetch: Each

    @property
    def bound_cycles(self) -> Each:
        """Cycles that the busiest unit needs for the whole operator."""
        tiles = self.changes * self.tiles
        gemm = tiles * self.chunks * self.gemm
        others = tiles * np.maximum(np.maximum(self.vector, self.store), self.fetch)
        return np.maximum(np.maximum(self.load_cycles, gemm), others)

    @property
    def load_cycles(self) -> Each:
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
    of_weights, of_inputs = _sums(tile, shape)
    # The sums of what stays on chip are made when it is loaded, not for each tile.
    sums = of_weights * (tile.order != "weights") + of_inputs * (tile.order != "pixels")
    gemm = tile.ic_blocks * shape.taps * (results + sums) + tile.oc_blocks
    passes = 1 + int(shape.sums_weights and shape.sums_inputs) + ADDING_PASSES * shape.adds_image
    vector = passes * (results + INSN_CYCLES * tile.oc_blocks * shape.phases) + sums
    store = _store_cycles(tile, shape, params, memory)
    counts = (1, oc_tiles * pixel_tiles, chunks, tile.oc_blocks)
    staying = 0.0
    if tile.order == "weights":
        counts = (oc_tiles, pixel_tiles, chunks, tile.oc_blocks)
        staying, wgt = wgt * chunks, 0.0
    elif tile.order == "pixels":
        counts = (pixel_tiles, oc_tiles, chunks, tile.oc_blocks)
        staying, inp = inp * chunks, 0.0
    if shape.adds_image:
        inp = inp + results * params.entry_bytes("inp") / params.bus_bytes / chunks
    # Each chunk has loads and products; each block of results has a PARAM, a VECTOR and a STORE.
    weights = tile.oc_blocks if tile.order != "weights" else 0
    insns = chunks * (1 + weights + tile.oc_blocks) + 3 * tile.oc_blocks * shape.phases
    if shape.adds_image:
        parts = -(-tile.rows // np.clip(_room_in_tmp(tile, shape), 1, tile.rows))
        insns = insns + tile.oc_blocks * (ADDING_INSNS * parts - 1)
    fetch = insns * _fetch_cycles(params, memory)
    return _Work(*counts, staying, inp, wgt, gemm, vector, store, fetch)


def _window_work(
    tile: Tiling, shape: ConvShape, weighted: bool, params: HwParams, memory: MemoryParams,
    worked: Tiling | None = None, insn_cycles: int = INSN_CYCLES,
) -> _Work:  # fmt: skip
    """As :func:`_work`; ``gemm`` has the vector unit's iterations instead of the tensor core's.
    The work of a tile is that of ``worked``, or of a full one.
    """
    channel_tiles, pixel_tiles, _ = _counts(tile, shape)
    tile = worked or tile
    rows = tile.oc_blocks * shape.input_rows(tile.rows)
    cols = shape.input_cols(tile.cols)
    inp = _read_cycles(rows, cols * params.entry_bytes("inp"), params, memory)
    # Weights are int8 in memory, parameters and the weights of a window int32.
    weight_bytes = params.block if shape.sums == 1 else params.entry_bytes("par")
    par_bytes = tile.oc_blocks * (shape.taps * weight_bytes + 3 * params.entry_bytes("par"))
    loaded = weighted and not shape.resident
    par = _read_cycles(1, par_bytes, params, memory) + INSN_CYCLES if loaded else 0.0
    iterations = shape.taps * tile.rows * shape.window_cols(tile.cols)
    compute = tile.oc_blocks * (iterations + insn_cycles)
    store = _store_cycles(tile, shape, params, memory)
    fetch = (1 + 2 * loaded + 3 * tile.oc_blocks) * _fetch_cycles(params, memory)
    if tile.order == "weights":
        return _Work(channel_tiles, pixel_tiles, 1, 1, par, inp, 0.0, compute, 0.0, store, fetch)
    tiles = channel_tiles * pixel_tiles
    return _Work(1, tiles, 1, 1, 0.0, inp, par, compute, 0.0, store, fetch)


def _store_cycles(tile: Tiling, shape: ConvShape, params: HwParams, memory: MemoryParams) -> Each:
    """Cycles to store a tile's results."""
    results = tile.oc_blocks * tile.rows * tile.cols * shape.phases
    beats = max(1.0, params.entry_bytes("out") / params.bus_bytes) * memory.cycles_per_beat
    rows = tile.oc_blocks * np.where(tile.cols == shape.ow, 1, tile.rows)
    bursts = rows * -(-results * beats // rows // params.max_burst_beats)
    return results * beats + BURST_CYCLES * bursts


def _replay(work: _Work, memory: MemoryParams, vthreads: int) -> Each:
    """Cycles of the operator when every unit works in order, waits for what it needs, and reuses a
    buffer ``vthreads`` steps later.
    """
    values = [getattr(work, field.name) for field in fields(work)]
    latency = memory.read_latency_cycles + TURN_CYCLES
    return replayed(values, latency, memory.write_latency_cycles, vthreads)


def _read_cycles(rows: Each, row_bytes: Each, params: HwParams, memory: MemoryParams) -> Each:
    """Cycles to load ``rows`` rows: the bus moves a beat a cycle, and the memory works on a limited
    number of bursts at once.
    """
    beats = np.maximum(1.0, row_bytes / params.bus_bytes) * memory.cycles_per_beat
    bursts = -(-beats // params.max_burst_beats)
    latency = (memory.read_latency_cycles + beats / bursts) / memory.outstanding
    return rows * bursts * np.maximum(beats / bursts, latency) + INSN_CYCLES


def fetch_beats(params: HwParams, memory: MemoryParams) -> float:
    """Cycles for which an instruction keeps the bus."""
    return params.insn_bytes / params.bus_bytes * memory.cycles_per_beat


def _fetch_cycles(params: HwParams, memory: MemoryParams) -> float:
    """Cycles to fetch an instruction. Each answer of the memory fills the prefetch buffer, and it
    waits behind a burst or two of loads.
    """
    beats = fetch_beats(params, memory)
    answer = memory.read_latency_cycles + beats * params.fetch_chunk + 2 * params.max_burst_beats
    return max(beats, answer / params.fetch_depth)
