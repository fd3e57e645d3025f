"""Tile sizes for the accelerator: what fits the scratchpads, and of that what a simple cost model
likes best.

The model counts, for a whole operator, the cycles of the tensor core and the cycles that the bus is
busy; units overlap, so the larger of the two bounds the operator, plus what cannot overlap: the
first tile's loads and the last tile's results.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from ...isa.errors import VdlaError
from ...isa.params import HwParams

#: Cycles that an instruction costs beyond its work (pipeline depth, token round trip), for the cost
#: model only.
INSN_OVERHEAD_CYCLES = 30


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

    def input_rows(self, rows: int) -> int:
        """Input rows that so many output rows read."""
        return (rows - 1) * self.stride_h + (self.kh - 1) * self.dilation_h + 1

    def input_cols(self, cols: int) -> int:
        """Input columns that so many output columns read."""
        return (cols - 1) * self.stride_w + (self.kw - 1) * self.dilation_w + 1


@dataclass(frozen=True)
class Tiling:
    """Output channel blocks, rows and columns of one tile, and input channel blocks loaded at a
    time.
    """

    oc_blocks: int
    rows: int
    cols: int
    ic_blocks: int


def _divisors_and_powers(extent: int) -> list[int]:
    """Candidate tile sizes: those for which the tiles are as even as possible."""
    return sorted({-(-extent // parts) for parts in range(1, extent + 1)})


def plan_conv(shape: ConvShape, params: HwParams, vthreads: int) -> Tiling:
    """The cheapest tiling whose buffers, ``vthreads`` copies of each, fit the scratchpads.

    Raises VdlaError when not even single rows and blocks fit, naming the scratchpad that is too
    small.
    """
    best: tuple[float, Tiling] | None = None
    for oc, rows, cols, ic in product(
        _divisors_and_powers(shape.oc_blocks),
        _divisors_and_powers(shape.oh),
        _divisors_and_powers(shape.ow),
        _divisors_and_powers(shape.ic_blocks),
    ):
        tile = Tiling(oc, rows, cols, ic)
        if _misfit(tile, shape, params, vthreads):
            continue
        cost = _cost(tile, shape, params)
        if best is None or cost < best[0]:
            best = (cost, tile)
    if best is None:
        reason = _misfit(Tiling(1, 1, 1, 1), shape, params, vthreads)
        raise VdlaError(
            f"convolution {shape.kh}x{shape.kw}: no tile fits with {vthreads} virtual threads, "
            f"{reason}"
        )
    return best[1]


def _misfit(tile: Tiling, shape: ConvShape, params: HwParams, vthreads: int) -> str:
    """Which scratchpad the tile exceeds, or an empty string."""
    pixels = tile.rows * tile.cols
    needs = {
        "inp": tile.ic_blocks * shape.input_rows(tile.rows) * shape.input_cols(tile.cols),
        "wgt": tile.oc_blocks * tile.ic_blocks * shape.kh * shape.kw,
        "acc": tile.oc_blocks * pixels,
        "out": tile.oc_blocks * pixels,
        "par": 3 * tile.oc_blocks,
    }
    for memory, entries in needs.items():
        if entries * vthreads > params.depth(memory):
            return f"{memory} needs {entries * vthreads} entries of {params.depth(memory)}"
    uops = tile.ic_blocks * shape.kh * shape.kw * tile.oc_blocks
    if uops > params.uop_depth // 2:
        return f"uop needs {uops} entries of {params.uop_depth // 2}"
    return ""


def _cost(tile: Tiling, shape: ConvShape, params: HwParams) -> float:
    """Estimated cycles of the whole operator."""
    oc_tiles = -(-shape.oc_blocks // tile.oc_blocks)
    pixel_tiles = -(-shape.oh // tile.rows) * -(-shape.ow // tile.cols)
    ic_tiles = -(-shape.ic_blocks // tile.ic_blocks)
    pixels = tile.rows * tile.cols
    macs = tile.oc_blocks * pixels * tile.ic_blocks * shape.kh * shape.kw
    inp_bytes = (
        tile.ic_blocks
        * shape.input_rows(tile.rows)
        * shape.input_cols(tile.cols)
        * params.entry_bytes("inp")
    )
    wgt_bytes = tile.oc_blocks * tile.ic_blocks * shape.kh * shape.kw * params.entry_bytes("wgt")
    load = (inp_bytes + wgt_bytes) / params.bus_bytes
    chunks = oc_tiles * pixel_tiles * ic_tiles
    store = tile.oc_blocks * pixels * params.entry_bytes("out") / params.bus_bytes
    steady = chunks * (max(macs, load) + INSN_OVERHEAD_CYCLES)
    return steady + load + store + tile.oc_blocks * pixels
