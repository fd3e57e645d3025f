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

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache, reduce
from math import inf
from typing import Any, ClassVar, Literal, TypeVar, get_args

import numpy as np

from .....isa.memory import MemoryParams
from .....isa.params import HwParams
from ....choose.space import KnobValue
from ....graph.ops.base import Pair
from ..expressions import Window
from ..machine import LONG_SUM, Budget, Context, Machine
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

#: Results that come in parts have at least so many tiles of channels for each virtual thread.
PARTS = 4

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
class Tiling:
    """Output channel blocks, rows and columns of one tile, input channel blocks loaded at a time,
    and the order of the loops over tiles.
    """

    oc_blocks: Each
    rows: Each
    cols: Each
    ic_blocks: Each
    order: Each
    vthreads: Each


def make_tiling(knobs: Mapping[str, Each]) -> Tiling:
    """A tiling from its knobs."""
    values = dict(knobs)
    values.setdefault("ic_blocks", values["oc_blocks"])
    return Tiling(**values)


@dataclass(frozen=True, kw_only=True)
class Shape(ABC):
    """A convolution, or pooling, in blocks of channels and pixels, whose results are cut into
    tiles."""

    oc_blocks: int
    oh: int
    ow: int
    kh: int
    kw: int
    stride_h: int = 1
    stride_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    #: Number of int8 values that add up to one weight.
    parts: int = 1
    #: Rows, and columns, of results whose windows see nothing but padding: before the others, and
    #: behind them.
    blank: tuple[Pair, Pair] = ((0, 0), (0, 0))
    #: How often all of this is computed, one after the other.
    times: int = 1
    #: Phases of a transposed convolution: results at every pixel, which lie side by side, each with
    #: its own weights and parameters.
    phases: int = 1

    #: What it is called in messages.
    noun: ClassVar[str]

    @property
    @abstractmethod
    def orders(self) -> tuple[Order, ...]:
        """The orders of loops that it may have."""

    @abstractmethod
    def needs(self, tile: Tiling) -> dict[str, Each]:
        """Entries of each scratchpad that tilings need."""

    @abstractmethod
    def work(self, tile: Tiling, machine: Machine) -> Work:
        """The cycles that units need."""

    @abstractmethod
    def floor(self, tile: Tiling, machine: Machine) -> Each:
        """Cycles that no program of a tiling can beat: a beat of the bus, a step of the tensor core
        and a vector of results take at least a cycle each."""

    @property
    def taps(self) -> int:
        """Weights of one channel in a kernel: its positions times ``parts``."""
        return self.kh * self.kw * self.parts

    @property
    def sizes(self) -> dict[str, list[int]]:
        """The knobs of a tiling that are sizes, with their candidates."""
        extents = {"oc_blocks": self.oc_blocks, "rows": self.oh, "cols": self.ow}
        return {name: even_sizes(extent) for name, extent in extents.items()}

    def orders_to_plan(self, context: Context) -> tuple[Order, ...]:
        """The orders that the planner considers where none is fixed."""
        return self.orders

    def deliver(self, tiles: Tiling, context: Context) -> np.ndarray:
        """Which tilings deliver results in the order that the context asks for."""
        return np.ones(np.shape(tiles.rows), bool)

    def waits(self, tiles: Tiling, context: Context) -> np.ndarray:
        """Cycles for which the first tile waits for the operator that makes its image."""
        return np.zeros(np.shape(tiles.rows))

    def tile_price(self, context: Context) -> int:
        """What a tile costs other operators."""
        return 0

    def rows_first(self, tile: Tiling) -> Each:
        """Whether all channels of some pixels are computed before those of others."""
        oc_tiles, pixel_tiles = self.count_tiles(tile)
        return (pixel_tiles > 1) & ((oc_tiles == 1) | (tile.order == "pixels"))

    def reads_parts(self, tile: Tiling) -> Each:
        """Whether all channels of some pixels are read before those of others."""
        return self.count_tiles(tile)[1] > 1

    def faults(self, tiles: Tiling) -> Iterator[tuple[np.ndarray, str]]:
        """Which tilings have a tile that no program computes, whatever its budget, and why."""
        yield _has_blank_tile(tiles, self), "would see padding only"

    def misfit(self, tile: Tiling, budget: Budget) -> str:
        """Which scratchpad a tiling exceeds, or what else is wrong with it, or an empty string."""
        if lack := budget.for_tiles().lack(self.needs(tile)):
            return lack
        reason = next((reason for has_it, reason in self.faults(tile) if has_it), "")
        return f"a tile of {tile.rows} x {tile.cols} results {reason}" if reason else ""

    def fits(self, tiles: Tiling, budget: Budget) -> np.ndarray:
        """Which of many tilings fit the scratchpads and can be loaded: bool [tilings]."""
        usable = budget.for_tiles()
        within = (need <= usable.of(name) for name, need in self.needs(tiles).items())
        possible = (~has_it for has_it, _ in self.faults(tiles))
        return reduce(np.logical_and, (*within, *possible))

    def cycles(self, tile: Tiling, machine: Machine) -> int:
        """The cycles that the cost model predicts for a tiling."""
        work = self.work(tile, machine)
        return self.times * round(_replay(work, machine.memory, tile.vthreads).item())

    def estimates(self, tiles: Tiling, machine: Machine) -> dict[str, Each]:
        """What the cost model knows of many tilings: the work of each unit, the needs of
        scratchpads, and the cycles of the replay, by name."""
        return self._estimates(tiles, self.work(tiles, machine), machine)

    def _estimates(self, tiles: Tiling, work: Work, machine: Machine) -> dict[str, Each]:
        count = work.changes * work.tiles
        return {
            **{field.name: getattr(work, field.name) for field in fields(work)},
            **{f"entries of {name}": need for name, need in self.needs(tiles).items()},
            "load of all": work.load_cycles, "gemm of all": count * work.chunks * work.gemm,
            "vector of all": count * work.vector, "store of all": count * work.store,
            "fetch of all": count * work.fetch, "bound": work.bound_cycles,
            "cycles": self.times * _replay(work, machine.memory, tiles.vthreads),
            "floor": self.times * self.floor(tiles, machine),
        }  # fmt: skip

    def input_rows(self, rows: Each) -> Each:
        """Input rows that are loaded for ``rows`` output rows."""
        return (rows - 1) * self.stride_h + (self.kh - 1) * self.dilation_h + 1

    def input_cols(self, cols: Each) -> Each:
        """Input columns that are loaded for ``cols`` output columns: all from the first to the last
        one that they read."""
        return (cols - 1) * self.stride_w + (self.kw - 1) * self.dilation_w + 1

    def borders(self) -> Pair:
        """The most rows, and columns, of a border, which are not loaded: it is at most as wide as
        the window on each side."""
        return (self.kh - 1) * self.dilation_h, (self.kw - 1) * self.dilation_w

    def least_input(self, tiles: Tiling) -> Each:
        """The fewest pixels of a channel that are loaded for all tiles."""

        def along(extent: int, size: Each, loaded: Callable[[Each], Each], border: int) -> Each:
            whole = (extent - 1) // size
            return np.maximum(whole * loaded(size) + loaded(extent - whole * size) - 2 * border, 1)

        rows_border, cols_border = self.borders()
        rows = along(self.oh, tiles.rows, self.input_rows, rows_border)
        return rows * along(self.ow, tiles.cols, self.input_cols, cols_border)

    def count_tiles(self, tile: Tiling) -> tuple[Each, Each]:
        """Tiles of output channels, and of pixels."""
        pixel_tiles = -(-self.oh // tile.rows) * -(-self.ow // tile.cols)
        return -(-self.oc_blocks // tile.oc_blocks), pixel_tiles


@dataclass(frozen=True, kw_only=True)
class ProductShape(Shape):
    """Products on the tensor core."""

    ic_blocks: int
    #: Whether a kernel of one row loads only those input rows that it reads: one per stride.
    skips_rows: bool = True
    #: Whether a kernel of one place loads only those input columns that it reads.
    skips_cols: bool = False
    #: By how many rows and columns the windows of the last phase are further on than those of the
    #: first.
    shift_h: int = 0
    shift_w: int = 0
    #: Whether the blocks of results are groups, each of ``ic_blocks`` blocks of its own.
    grouped: bool = False
    #: Whether the tensor core also sums the weights of each output channel, and the inputs of each
    #: pixel, and the vector unit adds these sums to the products.
    sums_weights: bool = False
    sums_inputs: bool = False
    #: Entries of tmp that results pass through, some rows of a tile at a time; 0 where they do not.
    through_tmp: int = 0
    #: Whether another image is loaded, and added to the results.
    adds_image: bool = False
    #: Whether weights lie in DRAM as 4 bits.
    packed: bool = False
    #: Whether all results are one tile, whose sums stay in acc: weights come by blocks of input
    #: channels, in two buffers, and parameters by blocks of results.
    streams: bool = False

    noun = "convolution"

    @property
    def orders(self) -> tuple[Order, ...]:
        """In groups, no output channels share their input, so that none can stay for others."""
        if self.streams:
            return ("stream",)
        return ("weights", "stream") if self.grouped else ORDERS

    @property
    def sizes(self) -> dict[str, list[int]]:
        found = {**super().sizes, "ic_blocks": even_sizes(self.ic_blocks)}
        return found | {"oc_blocks": [self.oc_blocks]} if self.streams else found

    def reads_parts(self, tile: Tiling) -> Each:
        return super().reads_parts(tile) & (not self.grouped)

    def deliver(self, tiles: Tiling, context: Context) -> np.ndarray:
        if context.in_parts:
            return self.count_tiles(tiles)[0] >= PARTS * tiles.vthreads
        if context.rows_first is None:
            return super().deliver(tiles, context)
        return self.rows_first(tiles) == context.rows_first

    def waits(self, tiles: Tiling, context: Context) -> np.ndarray:
        """Until the pixels, row by row, up to the last one of the first tile are there."""
        pixels = (tiles.rows - 1) * self.ow + tiles.cols
        return context.maker_cycles * pixels / (self.oh * self.ow)

    def tile_price(self, context: Context) -> int:
        return TAKEOVER_CYCLES if context.beside else 0

    def input_rows(self, rows: Each) -> Each:
        if self.kh == 1 and self.skips_rows:
            return rows
        return super().input_rows(rows) + self.shift_h

    def input_cols(self, cols: Each) -> Each:
        return cols if self.skips_cols else super().input_cols(cols) + self.shift_w

    def borders(self) -> Pair:
        rows, cols = super().borders()
        return rows + self.shift_h, cols + self.shift_w

    def faults(self, tiles: Tiling) -> Iterator[tuple[np.ndarray, str]]:
        """Also those whose results do not pass through tmp, if they must, in parts as large as fit,
        or half."""
        yield from super().faults(tiles)
        reason = f"skips columns, and its rows do not divide {self.oh}"
        yield _lacks_rows(tiles, self), reason
        if self.through_tmp:
            passing = _in_even_parts(tiles.rows, _room_in_tmp(tiles, self))
            yield ~passing, "does not pass tmp in even parts"

    def needs(self, tile: Tiling) -> dict[str, Each]:
        vthreads = 1 if self.streams else tile.vthreads
        results = tile.oc_blocks * tile.rows * tile.cols * self.phases
        inp_entries, wgt_entries = self._entries(tile)
        (oc_tiles, pixel_tiles), chunks = self.count_tiles(tile), self._count_chunks(tile)
        # What stays has all chunks, and is there once if it is never replaced.
        weights, pixels = tile.order == "weights", tile.order == "pixels"
        wgt_copies = np.where(weights & (oc_tiles * self.times == 1), 1, vthreads) + self.streams
        inp_copies = np.where(pixels & (pixel_tiles * self.times == 1), 1, vthreads)
        uop = tile.ic_blocks * self.taps * tile.oc_blocks * self.phases
        # Results leave block by block of channels, through two buffers.
        leaving = tile.rows * tile.cols * self.phases * np.minimum(tile.oc_blocks, 2)
        of_weights, of_inputs = self._sums(tile)
        needs = {
            "acc": (results + of_weights + of_inputs) * vthreads,
            "out": leaving * vthreads,
            "inp": inp_entries * np.where(pixels, chunks, 1) * inp_copies
            + int(self.sums_weights)
            + leaving * vthreads * int(self.adds_image),
            "wgt": wgt_entries * np.where(weights, chunks, 1) * wgt_copies + int(self.sums_inputs),
            "par": 3 * (1 if self.streams else tile.oc_blocks) * self.phases * wgt_copies,
            "uop": uop,
        }
        if self.sums_weights or self.sums_inputs:
            # With sums of both kinds, products with one of them wait for the other one in tmp.
            waiting = of_inputs if self.sums_weights else 0
            needs["tmp"] = (of_weights + of_inputs + waiting) * vthreads
            needs["uop"] = uop + tile.oc_blocks * np.where(
                tile.ic_blocks < LONG_SUM, tile.ic_blocks, 2
            )
        return needs

    def work(self, tile: Tiling, machine: Machine) -> Work:
        params = machine.params
        (oc_tiles, pixel_tiles), chunks = self.count_tiles(tile), self._count_chunks(tile)
        results = tile.oc_blocks * tile.rows * tile.cols * self.phases
        inp_entries, wgt_entries = self._entries(tile)
        cols = self.input_cols(tile.cols)
        inp = _load_cycles(inp_entries // cols, cols * params.entry_bytes("inp"), machine)
        tile_bytes = params.dram_entry_bytes("wgt", self.packed)
        wgt = _load_cycles(1, wgt_entries * tile_bytes, machine)
        of_weights, of_inputs = self._sums(tile)
        # The sums of what stays on chip are made when it is loaded, not for each tile.
        sums = of_weights * (tile.order != "weights") + of_inputs * (tile.order != "pixels")
        gemm = tile.ic_blocks * self.taps * (results + sums) + tile.oc_blocks
        passes = 1 + int(self.sums_weights and self.sums_inputs) + ADDING_PASSES * self.adds_image
        vector = passes * (results + INSN_CYCLES * tile.oc_blocks * self.phases) + sums
        store = _store_cycles(tile, self, machine)
        stay = [tile.order == "weights", tile.order == "pixels"]
        changes = np.select(stay, [oc_tiles, pixel_tiles], 1)
        staying = np.select(stay, [wgt * chunks, inp * chunks], 0.0)
        wgt, inp = np.where(stay[0], 0.0, wgt), np.where(stay[1], 0.0, inp)
        if self.adds_image:
            inp = inp + results * params.entry_bytes("inp") / params.bus_bytes / chunks
        # Each chunk has loads and products; each block of results has a PARAM, a VECTOR and a
        # STORE.
        weights = np.where(stay[0], 0, tile.oc_blocks)
        insns = chunks * (1 + weights + tile.oc_blocks) + 3 * tile.oc_blocks * self.phases
        if self.adds_image:
            parts = -(-tile.rows // np.clip(_room_in_tmp(tile, self), 1, tile.rows))
            insns = insns + tile.oc_blocks * (ADDING_INSNS * parts - 1)
        fetch = insns * _fetch_cycles(machine)
        return Work(
            changes, oc_tiles * pixel_tiles // changes, chunks, tile.oc_blocks, staying, inp, wgt,
            gemm, vector, store, fetch,
        )  # fmt: skip

    def floor(self, tile: Tiling, machine: Machine) -> Each:
        """Instructions come over the bus, too: a tile has products for each chunk, and each of its
        blocks of channels is computed and stored by itself."""
        params, results = machine.params, self.oc_blocks * self.oh * self.ow * self.phases
        oc_tiles, pixel_tiles = self.count_tiles(tile)
        inp = self.ic_blocks * self.least_input(tile) * params.entry_bytes("inp")
        weights = self.oc_blocks * self.ic_blocks * self.taps * self.phases
        wgt = weights * params.dram_entry_bytes("wgt", self.packed)
        if self.grouped:
            loaded = inp * self.oc_blocks
        else:
            loaded = inp * np.where(tile.order == "pixels", 1, oc_tiles)
        loaded = loaded + wgt * np.where(tile.order == "weights", 1, pixel_tiles)
        insns = pixel_tiles * (2 * self.oc_blocks + oc_tiles * self._count_chunks(tile))
        loaded = loaded + insns * params.insn_bytes
        return _floor(loaded, results, self.ic_blocks * self.taps * results, machine)

    def _count_chunks(self, tile: Tiling) -> Each:
        """Chunks of input channels."""
        return -(-self.ic_blocks // tile.ic_blocks)

    def _entries(self, tile: Tiling) -> tuple[Each, Each]:
        """Entries of inp and wgt that one tile loads for one chunk of input channels."""
        inputs = self.input_rows(tile.rows) * self.input_cols(tile.cols)
        groups = tile.oc_blocks if self.grouped else 1
        weights = tile.oc_blocks * tile.ic_blocks * self.taps * self.phases
        return groups * tile.ic_blocks * inputs, weights

    def _sums(self, tile: Tiling) -> tuple[Each, Each]:
        """Vectors of sums of weights, and of sums of inputs, in one tile."""
        of_inputs = tile.rows * tile.cols * int(self.sums_inputs)
        return tile.oc_blocks * int(self.sums_weights), of_inputs


@dataclass(frozen=True, kw_only=True)
class WindowShape(Shape):
    """Windows on the vector unit: pooling, or (``weighted``) depthwise convolution, where every
    channel block has its own weights and requantisation parameters. In pooling, all blocks share
    one set of parameters."""

    weighted: bool
    #: Products of a sliding window in an iteration, 1 without one. Then kw is a multiple of it.
    sums: int = 1
    #: Whether the weights and parameters of all channels stay in par, and are loaded once.
    resident: bool = False
    #: Whether results pass tmp, block by block of channels, and are looked up in a table there.
    looked_up: bool = False

    noun = "a window of"

    @property
    def orders(self) -> tuple[Order, ...]:
        """Weights stay only where there are any."""
        return ORDERS if self.weighted else ("pixels", "stream")

    def orders_to_plan(self, context: Context) -> tuple[Order, ...]:
        """Where the context asks for rows first, the loop over pixels is outside the loop over
        channels."""
        if context.rows_first:
            return ("pixels",)
        return ("weights", "stream") if self.weighted else ("stream",)

    @property
    def taps(self) -> int:
        """Those that a window uses in one iteration are one."""
        return super().taps // self.sums

    def needs(self, tile: Tiling) -> dict[str, Each]:
        blocks, vthreads = tile.oc_blocks, tile.vthreads
        inputs = self.input_rows(tile.rows) * self.input_cols(tile.cols)
        par = (self.taps + 3) * (self.oc_blocks if self.resident else blocks * vthreads)
        return {
            "inp": blocks * inputs * vthreads,
            "out": blocks * tile.rows * tile.cols * vthreads,
            "par": par if self.weighted else 3,
            "tmp": tile.rows * tile.cols * self.looked_up,
        }

    def work(
        self, tile: Tiling, machine: Machine, worked: Tiling | None = None,
        insn_cycles: int = INSN_CYCLES,
    ) -> Work:  # fmt: skip
        """``gemm`` has the vector unit's iterations instead of the tensor core's. The work of a
        tile is that of ``worked``, or of a full one."""
        params, (channel_tiles, pixel_tiles) = machine.params, self.count_tiles(tile)
        tile = worked or tile
        rows = tile.oc_blocks * self.input_rows(tile.rows)
        cols = self.input_cols(tile.cols)
        inp = _load_cycles(rows, cols * params.entry_bytes("inp"), machine)
        # Weights are int8 in memory, parameters and the weights of a window int32.
        weight_bytes = params.block if self.sums == 1 else params.entry_bytes("par")
        par_bytes = tile.oc_blocks * (self.taps * weight_bytes + 3 * params.entry_bytes("par"))
        loaded = self.weighted and not self.resident
        par = _load_cycles(1, par_bytes, machine) + INSN_CYCLES if loaded else 0.0
        iterations = self.taps * tile.rows * slide_cols(tile.cols, self.sums)
        again = (tile.rows * tile.cols + insn_cycles) * self.looked_up
        compute = tile.oc_blocks * (iterations + insn_cycles + again)
        store = _store_cycles(tile, self, machine)
        insns = 1 + 2 * loaded + (3 + self.looked_up) * tile.oc_blocks
        fetch = insns * _fetch_cycles(machine)
        stay = tile.order == "weights"
        changes, tiles = np.where(stay, channel_tiles, 1), channel_tiles * pixel_tiles
        loads = np.where(stay, par, 0.0), inp, np.where(stay, 0.0, par)
        return Work(changes, tiles // changes, 1, 1, *loads, compute, 0.0, store, fetch)

    def estimates(self, tiles: Tiling, machine: Machine) -> dict[str, Each]:
        """The vector unit is busy nearly all the time, so that tilings differ by little, and the
        work is that of the mean tile, whose sizes are no whole numbers: the planner counts the last
        tile as a full one, which makes 15 rows of 14 in tiles of 5."""
        mean = replace(
            tiles,
            oc_blocks=self.oc_blocks / -(-self.oc_blocks // tiles.oc_blocks),
            rows=self.oh / -(-self.oh // tiles.rows),
            cols=self.ow / -(-self.ow // tiles.cols),
        )
        return self._estimates(tiles, self.work(tiles, machine, mean, WINDOW_INSN_CYCLES), machine)

    def floor(self, tile: Tiling, machine: Machine) -> Each:
        results = self.oc_blocks * self.oh * self.ow
        inputs = self.oc_blocks * self.least_input(tile)
        loaded = inputs * machine.params.entry_bytes("inp")
        return _floor(loaded, results, self.taps * results, machine)


def slide_cols(cols: Each, sums: int) -> Each:
    """Results of a row for which a window that slides takes time: the first ones, one fewer than
    its sums, are not whole, and come before those of the row."""
    return cols + sums - 1


#: Tilings that are replayed in one call.
REPLAYED_TOGETHER = 16
#: Knobs of a tiling that are sizes, in the order in which candidates are listed.
_SIZES = ("oc_blocks", "rows", "cols", "ic_blocks")


def even_sizes(extent: int) -> list[int]:
    """Candidate tile sizes: those that cut an extent into tiles as even as possible."""
    return sorted({-(-extent // parts) for parts in range(1, extent + 1)})


@lru_cache(maxsize=1024)
def plan_tiles(
    shape: Shape, context: Context, machine: Machine, fixed: Fixed = ()
) -> tuple[Tiling, int] | str:
    """Find the cheapest tiling that has the ``fixed`` knobs.

    Its buffers, one copy for each virtual thread, fit the budget. Where the context asks for rows
    first, or for the opposite, other tilings are considered only if none delivers that.

    Returns the tiling and its predicted cycles. Where no tiling fits, returns a message that says
    which scratchpad is too small.
    """
    vthreads = int(dict(fixed).get("vthreads", machine.vthreads))
    orders = shape.orders if "order" in dict(fixed) else shape.orders_to_plan(context)
    tiles = _list_tilings(shape, orders, vthreads, fixed)
    tiles = _pick(tiles, shape.fits(tiles, context.budget))
    if not len(tiles.rows):
        sizes = {name: values[0] for name, values in shape.sizes.items()}
        least = make_tiling({**sizes, "order": orders[-1], "vthreads": vthreads, **dict(fixed)})
        reason = shape.misfit(least, context.budget)
        kernel = f"{shape.noun} {shape.kh}x{shape.kw}"
        threads = f"{least.vthreads} virtual thread{'s' * (least.vthreads > 1)}"
        return f"{kernel}: no tile fits with {threads}, {reason}"
    if (delivering := shape.deliver(tiles, context)).any():
        tiles = _pick(tiles, delivering)
    work = shape.work(tiles, machine)
    besides = _cost_besides(work, shape, context, machine) + shape.waits(tiles, context)
    tile, cycles = _fastest(tiles, work, besides, machine.memory)
    return tile, shape.times * cycles


def load_price(context: Context) -> float:
    """What a cycle of the load unit costs other operators."""
    return SCARCE if context.scarce_loads else OTHERS


def insn_price(context: Context, machine: Machine) -> float:
    """What an instruction costs other operators: where loads are scarce, what a load of as many
    bytes does, because both come over the same bus."""
    beats = fetch_beats(machine.params, machine.memory)
    return load_price(context) * beats if context.scarce_loads else 0.0


_Record = TypeVar("_Record", "Tiling", "Work")


def _pick(record: _Record, which: np.ndarray | int) -> _Record:
    """The tilings, or the work, that a mask or an index picks of many; of one index with plain
    numbers.
    """
    values = ((field.name, getattr(record, field.name)) for field in fields(record))
    picked = {name: value[which] for name, value in values if isinstance(value, np.ndarray)}
    if isinstance(which, int):
        picked = {name: value.item() for name, value in picked.items()}
    return replace(record, **picked)


def _cost_besides(work: Work, shape: Shape, context: Context, machine: Machine) -> Each:
    """What all tiles cost other operators: the load unit's cycles, those in which instructions are
    fetched, and tiles that the vector unit takes over."""
    fetch_price = insn_price(context, machine) / _fetch_cycles(machine)
    each = fetch_price * work.fetch + shape.tile_price(context)
    return load_price(context) * work.load_cycles + work.changes * work.tiles * each


def _fastest(
    tiles: Tiling, work: Work, besides: np.ndarray, memory: MemoryParams
) -> tuple[Tiling, int]:
    """Find the tiling of the least cost, and the cycles of its replay. The cost is these cycles,
    and what the tiling costs ``besides``. Tilings are tried in the order of a lower bound of their
    cost, until that bound reaches the least cost so far.
    """
    bounds = work.bound_cycles + besides
    # Of equal bounds, the smaller tile comes first, then the earlier order of loops.
    sizes = [getattr(tiles, name) for name in _SIZES]
    order = np.lexsort((*reversed(sizes), bounds))
    best, found, least = -1, 0, inf
    for begin in range(0, order.size, REPLAYED_TOGETHER):
        several = order[begin : begin + REPLAYED_TOGETHER]
        if bounds[several[0]] >= least:
            break
        each = _replay(_pick(work, several), memory, _pick(tiles, several).vthreads)
        for chosen, cycles in zip(several.tolist(), each.tolist(), strict=True):
            if bounds[chosen] >= least:
                break
            if cycles + besides[chosen] < least:
                best, found, least = chosen, cycles, cycles + besides[chosen]
    return _pick(tiles, best), round(found)


def _floor(loaded_bytes: Each, results: int, steps: int, machine: Machine) -> Each:
    params, beat = machine.params, machine.memory.cycles_per_beat / machine.params.bus_bytes
    stored = results * params.entry_bytes("out") * beat
    return np.maximum(np.maximum(loaded_bytes * beat, stored), steps)


@lru_cache(maxsize=1024)
def row_cycles(
    entries: int, size: int, passes: int, operands: int, vthreads: int, machine: Machine
) -> int:
    """The cycles that the cost model predicts for ``entries`` vectors in tiles of ``size``. For
    each tile, ``operands`` tensors are loaded, and the vector unit passes over it ``passes`` times.
    """
    row = WindowShape(oc_blocks=1, oh=1, ow=entries, kh=1, kw=1, weighted=False)
    tile = Tiling(1, 1, size, 1, "stream", vthreads)
    inp = operands * _load_cycles(1, size * machine.params.entry_bytes("inp"), machine)
    # The vector unit takes the tensor core's place, as in the work of windows.
    compute, insns = passes * (size + INSN_CYCLES), operands + passes + 2
    store, tiles = _store_cycles(tile, row, machine), -(-entries // size)
    return round(steps_cycles(1, tiles, 0.0, inp, compute, 0.0, store, insns, vthreads, machine))


@lru_cache(maxsize=4096)
def steps_cycles(
    changes: Each, tiles: Each, staying: Each, loaded: Each, gemm: Each, vector: Each, store: Each,
    insns: Each, vthreads: int, machine: Machine,
) -> float:  # fmt: skip
    """The cycles that the cost model predicts for ``changes`` groups of so many tiles. The other
    numbers are cycles of units, and instructions, for each tile; ``staying`` for each group."""
    fetch = insns * _fetch_cycles(machine)
    work = Work(changes, tiles, 1, 1, staying, 0.0, loaded, gemm, vector, store, fetch)
    return _replay(work, machine.memory, vthreads).item()


def skips_cols(window: Window, width: int, oc_blocks: int, machine: Machine) -> bool:
    """Whether a kernel of one place loads only those columns of an image of ``width`` columns that
    it reads: where a load of all is scarce beside their products with ``oc_blocks`` blocks of
    weights. Each column is a burst by itself, which a memory that answers late makes slow.
    """
    params, stride = machine.params, window.strides[1]
    if window.kernel != (1, 1) or stride == 1 or any(window.pads):
        return False
    cols, entry = -(-width // stride), params.entry_bytes("inp")
    apart = _load_cycles(cols, entry, machine)
    whole = _load_cycles(1, width * entry, machine)
    return bool(apart < whole and SCARCE_SHARE * oc_blocks * cols <= whole)


def read_cycles(read_bytes: int, machine: Machine) -> int:
    """Cycles that the bus needs to read so many bytes, operands and instructions together."""
    return round(read_bytes / machine.params.bus_bytes * machine.memory.cycles_per_beat)


def _list_tilings(shape: Shape, orders: tuple[Order, ...], vthreads: int, fixed: Fixed) -> Tiling:
    """All candidates with the fixed knobs."""
    knobs = {"order": orders, **shape.sizes}
    meshes = (mesh.reshape(-1) for mesh in np.meshgrid(*knobs.values(), indexing="ij"))
    tiles = make_tiling({**dict(zip(knobs, meshes, strict=True)), "vthreads": vthreads})
    legal = np.ones(tiles.rows.size, bool)
    for name, value in fixed:
        legal &= getattr(tiles, name) == value
    return _pick(tiles, legal)


def rows_through_tmp(tile: Tiling, shape: ProductShape) -> int:
    """The most rows of a tile that have room in ``tmp`` and divide its rows evenly; 0 where not
    one has room."""
    return _even_part(tile.rows, _room_in_tmp(tile, shape))


def _room_in_tmp(tiles: Tiling, shape: ProductShape) -> Each:
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


def _has_blank_tile(tile: Tiling, shape: Shape) -> np.ndarray:
    """Whether there is a tile that sees nothing but padding, which no load can make: then the first
    or the last one is one."""
    found = np.zeros(np.shape(tile.rows), bool)
    sizes = (tile.rows, shape.oh), (tile.cols, shape.ow)
    for (size, extent), (before, behind) in zip(sizes, shape.blank, strict=True):
        last = extent - (extent - 1) // size * size
        found = found | (size <= before) | (last <= behind)
    return found


def _lacks_rows(tile: Tiling, shape: ProductShape) -> np.ndarray:
    """Whether the last tile has fewer rows of an image whose columns are skipped. Nothing would be
    loaded for the others, but a load whose columns are single entries cannot pad rows."""
    return np.logical_and(shape.skips_cols, shape.oh % tile.rows != 0)


@dataclass(frozen=True)
class Work:
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


def _store_cycles(tile: Tiling, shape: Shape, machine: Machine) -> Each:
    """Cycles to store a tile's results."""
    params = machine.params
    results = tile.oc_blocks * tile.rows * tile.cols * shape.phases
    beats = max(1.0, params.entry_bytes("out") / params.bus_bytes)
    beats *= machine.memory.cycles_per_beat
    rows = tile.oc_blocks * np.where(tile.cols == shape.ow, 1, tile.rows)
    bursts = rows * -(-results * beats // rows // params.max_burst_beats)
    return results * beats + BURST_CYCLES * bursts


def _replay(work: Work, memory: MemoryParams, vthreads: Each) -> Each:
    """Cycles of the operator when every unit works in order, waits for what it needs, and reuses a
    buffer ``vthreads`` steps later.
    """
    values = [getattr(work, field.name) for field in fields(work)]
    latency = memory.read_latency_cycles + TURN_CYCLES
    return replayed(values, latency, memory.write_latency_cycles, vthreads)


def _load_cycles(rows: Each, row_bytes: Each, machine: Machine) -> Each:
    """Cycles to load ``rows`` rows: the bus moves a beat a cycle, and the memory works on a limited
    number of bursts at once.
    """
    params, memory = machine.params, machine.memory
    beats = np.maximum(1.0, row_bytes / params.bus_bytes) * memory.cycles_per_beat
    bursts = -(-beats // params.max_burst_beats)
    latency = (memory.read_latency_cycles + beats / bursts) / memory.outstanding
    return rows * bursts * np.maximum(beats / bursts, latency) + INSN_CYCLES


def fetch_beats(params: HwParams, memory: MemoryParams) -> float:
    """Cycles for which an instruction keeps the bus."""
    return params.insn_bytes / params.bus_bytes * memory.cycles_per_beat


def _fetch_cycles(machine: Machine) -> float:
    """Cycles to fetch an instruction. Each answer of the memory fills the prefetch buffer, and it
    waits behind a burst or two of loads.
    """
    params, memory = machine.params, machine.memory
    beats = fetch_beats(params, memory)
    answer = memory.read_latency_cycles + beats * params.fetch_chunk + 2 * params.max_burst_beats
    return max(beats, answer / params.fetch_depth)
