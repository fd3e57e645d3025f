"""Nests in normal form against plain NumPy loops: the instructions must touch the same entries in
the same way.
"""

import numpy as np
import pytest
from vdla.compiler.targets.vdla.cost.tiling import ProductShape, plan_tiles
from vdla.compiler.targets.vdla.lower.link import Linker
from vdla.compiler.targets.vdla.lower.object_code import ObjectCode
from vdla.compiler.targets.vdla.lower.stream import Loop, Padding, Stream, VectorWork, fuse_loops
from vdla.compiler.targets.vdla.machine import LONG_SUM, Budget, Context, Machine
from vdla.isa.insn import Gemm, Load, Vector, decode_uop, validate
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams
from vdla.runtime.layout import (
    activation_bytes,
    pack_activation,
    pack_parameters,
    pack_weight,
    unpack_activation,
)

VTA = MEMORY_PRESETS["vta"]
PARAMS = HwParams()


def test_fuse_loops_merges_only_what_steps_alike():
    assert fuse_loops([Loop(4, (8, 2)), Loop(8, (1, 0))]) == [Loop(4, (8, 2)), Loop(8, (1, 0))]
    assert fuse_loops([Loop(4, (8, 16)), Loop(1, (5, 5)), Loop(8, (1, 2))]) == [Loop(32, (1, 2))]


def _loaded_rows(insn: Load) -> list[int | None]:
    """DRAM address of every entry written, None for padding."""
    entry_bytes = PARAMS.entry_bytes(insn.memory)
    entries: list[int | None] = []
    for z in range(insn.z_size):
        for y in range(-insn.pad_top, insn.y_size + insn.pad_bottom):
            for x in range(-insn.pad_left, insn.x_size + insn.pad_right):
                inside = 0 <= y < insn.y_size and 0 <= x < insn.x_size
                row = insn.dram_addr + z * insn.z_stride + y * insn.y_stride
                entries.append(row + x * entry_bytes if inside else None)
    return entries


def linked(stream: Stream) -> Linker:
    """The instructions of a stream at the place that it says."""
    linker = Linker(stream.params)
    linker.add(ObjectCode.of(stream), "layer", {})
    return linker


@pytest.mark.parametrize("outer", [1, 2])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 1)])
def test_load_covers_the_box(outer: int, pads: tuple[int, int, int, int]):
    top, bottom, left, right = pads
    stream = Stream(PARAMS)
    loops = [Loop(outer, (100_000,)), Loop(3, (10_000,)), Loop(5, (640,)), Loop(7, (16,))]
    stream.load(
        "inp",
        10,
        4096,
        loops,
        [Padding(), Padding(), Padding(top, bottom), Padding(left, right)],
        -3,
    )
    expected = [
        4096 + o * 100_000 + z * 10_000 + y * 640 + x * 16 if 0 <= y < 5 and 0 <= x < 7 else None
        for o in range(outer)
        for z in range(3)
        for y in range(-top, 5 + bottom)
        for x in range(-left, 7 + right)
    ]
    loads = [insn for insn in stream.insns if isinstance(insn, Load)]
    assert [entry for insn in loads for entry in _loaded_rows(insn)] == expected
    at = 10
    for insn in loads:
        validate(insn, PARAMS)
        assert insn.base == at
        at += insn.entries


def test_gemm_visits_every_step_once_and_inits_on_the_first_reduction_step():
    stream = Stream(PARAMS)
    nest = [
        Loop(2, (12, 0, 9)),
        Loop(3, (4, 10, 0)),
        Loop(4, (1, 1, 0)),
        Loop(3, (0, 10, 3)),
        Loop(3, (0, 1, 1)),
    ]
    stream.gemm((100, 200, 300), nest, init=True)
    (insn,) = [i for i in stream.insns if isinstance(i, Gemm)]
    assert insn.uop_count == 2 * 3 * 3 and (insn.outer, insn.inner) == (3, 4) and insn.init
    assert insn.iterations == 2 * 3 * 4 * 3 * 3
    linker = linked(stream)
    (load,) = [i for i in linker.insns().insns() if isinstance(i, Load)]
    data, size = linker.dram.image[load.dram_addr], PARAMS.entry_bytes("uop")
    uops = [decode_uop(data[at : at + size], PARAMS) for at in range(0, len(data), size)]
    # The first operands of each accumulator, and nothing else.
    assert [(u.acc, u.inp, u.wgt) for u in uops if u.first] == [(100, 200, 300), (112, 200, 309)]


def test_micro_ops_are_loaded_once_until_the_memory_is_full():
    params = HwParams(uop_depth=16)
    stream = Stream(params)
    for wgt in (0, 0, 9, 0):
        stream.gemm((0, 0, wgt), [Loop(4, (1, 1, 0)), Loop(9, (0, 4, 1))], init=True)
    kinds = [type(insn).__name__ for insn in linked(stream).insns().insns()]
    assert kinds == ["Load", "Gemm", "Gemm", "Load", "Gemm", "Load", "Gemm"]


def test_a_long_sum_has_two_micro_ops():
    """Of its first step, and of a loop over the others; but a long product has as many as steps."""
    stream, (short, long) = Stream(PARAMS), (LONG_SUM - 1, LONG_SUM)
    for steps, of_inp in ((short, 0), (long, 2), (long, 0)):
        stream.gemm((5, 6, 7), [Loop(1, (1, 1, 0)), Loop(steps, (0, of_inp, 3))], init=True)
    *others, first, last = (insn for insn in stream.insns if isinstance(insn, Gemm))
    assert [insn.uop_count for insn in (*others, first, last)] == [short, long, 1, 1]
    assert (first.iterations, last.iterations) == (1, short)
    assert (first.init, last.init, last.inp_inner, last.wgt_inner) == (1, 0, 0, 3)
    found = [np.array(uops).tolist() for uops in stream.micro_ops]
    assert found[-2:] == [[[5, 6, 7, 1]], [[5, 6, 10, 1]]]


def test_layers_beside_others_have_micro_ops_of_their_own():
    """They are in the last entries, and stay there when the others start again at the bottom."""
    linker = Linker(HwParams(uop_depth=16), beside_uops=6)
    for wgt, beside in ((0, False), (50, True), (9, False), (18, False), (50, True)):
        stream = Stream(linker.params)
        stream.gemm((0, 0, wgt), [Loop(4, (1, 1, 0)), Loop(5, (0, 4, 1))], init=True)
        linker.add(ObjectCode.of(stream), "layer", {}, beside=beside)
    loads = [insn for insn in linker.insns().insns() if isinstance(insn, Load)]
    assert [load.base for load in loads] == [0, 10, 5, 0]


def test_vector_with_too_many_loops_is_unrolled():
    stream = Stream(PARAMS)
    loops = (Loop(2, (64, 128, 0)), Loop(3, (8, 50, 0)), Loop(4, (1, 2, 0)))
    reduction = (Loop(3, (0, 12, 0)), Loop(3, (0, 1, 0)))
    stream.vector(VectorWork("max", -128, ("out", "inp", "imm"), (0, 0, 0), loops, reduction))
    vectors = [insn for insn in stream.insns if isinstance(insn, Vector)]
    assert [insn.dst_base for insn in vectors] == [0, 64]
    assert all(insn.reduce == 2 and insn.extents == (3, 4, 3, 3) for insn in vectors)


def test_layouts_round_trip_and_pad_with_zeros():
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 128, (1, 20, 3, 5)).astype(np.int8)
    packed = pack_activation(x, PARAMS)
    assert packed.size == activation_bytes(x.shape, PARAMS) == 2 * 3 * 5 * 16
    assert np.array_equal(unpack_activation(packed, x.shape, PARAMS), x)
    entry = packed.view(np.int8).reshape(2, 3, 5, 16)[1, 2, 4]
    assert np.array_equal(entry[:4], x[0, 16:, 2, 4]) and not entry[4:].any()
    weight = rng.integers(-128, 128, (17, 20, 3, 2)).astype(np.int8)
    tiles = pack_weight(weight, PARAMS)
    assert tiles.shape == (2, 2, 3, 2, 16, 16) and tiles[1, 1, 2, 1, 0, 3] == weight[16, 19, 2, 1]
    assert not tiles[1, :, :, :, 1:].any()
    parameters = pack_parameters(np.arange(17), np.arange(17) + 100, np.arange(17) + 200, PARAMS)
    assert parameters.shape == (2, 3, 16) and list(parameters[1, :, 0]) == [16, 116, 216]


@pytest.mark.slow
def test_tiles_fit_and_refusals_name_the_scratchpad():
    shape = ProductShape(ic_blocks=4, oc_blocks=4, oh=56, ow=56, kh=3, kw=3)
    for vthreads in (1, 2):
        found = plan_tiles(shape, whole(PARAMS), Machine(PARAMS, VTA, vthreads))
        assert not isinstance(found, str)
        tile, cycles = found
        assert cycles > 0
        inp = tile.ic_blocks * shape.input_rows(tile.rows) * shape.input_cols(tile.cols)
        assert inp * vthreads <= PARAMS.inp_depth and tile.oc_blocks * tile.rows * tile.cols > 1
    small = HwParams(wgt_depth=8)
    refused = plan_tiles(
        ProductShape(ic_blocks=1, oc_blocks=1, oh=8, ow=8, kh=7, kw=7),
        whole(small),
        Machine(small, VTA, 1),
    )
    assert isinstance(refused, str)
    assert refused.startswith("convolution 7x7: no tile fits")
    assert refused.endswith("wgt needs 49 entries of 8")


def whole(params: HwParams) -> Context:
    return Context(Budget.whole(params))
