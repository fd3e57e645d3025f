"""The accelerator's rules: a plain convolution and a plain dense layer become tensorized programs
that compute NumPy's bits, however their open steps are decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla import te, topi
from vdla.compiler.choose.records import Records
from vdla.compiler.targets.vdla.expressions import gemm_intrin, padded
from vdla.compiler.te.errors import ScheduleError
from vdla.compiler.te.steps import from_text, replay, to_text
from vdla.compiler.tune.auto import evolution
from vdla.compiler.tune.auto.accelerator import accelerator_program
from vdla.compiler.tune.auto.builder import Kind, Program, at_random
from vdla.isa.errors import VdlaError
from vdla.isa.insn import Gemm
from vdla.isa.params import HwParams

PARAMS = HwParams(block_in=4, block_out=4)
GEMM = gemm_intrin(PARAMS)
BLOCK = PARAMS.block
SHIFT, LEAST = 12, -100


@dataclass(frozen=True)
class Plain:
    """An expression, operands, and its value by NumPy."""

    args: list[te.Tensor]
    operands: list[np.ndarray]
    expected: np.ndarray


def requantized(acc: te.Tensor, param: te.Tensor) -> te.Tensor:
    """``clip(round((acc + bias) * multiplier / 2**shift))``, in two stages."""

    def scaled(*index):
        bias, multiplier, shift = (param[index[0], k, index[-1]] for k in range(3))
        return topi.rescale(acc[index] + bias, multiplier, shift)

    y = te.compute(acc.shape, lambda *i: scaled(*i), "y")
    return te.compute(acc.shape, lambda *i: te.clip(y[i], LEAST, 127).astype("int8"), "out")


def finished(acc: np.ndarray, param: np.ndarray) -> np.ndarray:
    """As :func:`requantized`, in int64."""
    shape = (len(param), *(1,) * (acc.ndim - 2), BLOCK)
    bias, multiplier = (param[:, k].astype(np.int64).reshape(shape) for k in range(2))
    scaled, half = (acc + bias) * multiplier, 1 << (SHIFT - 1)
    rounded = (scaled + half) >> SHIFT
    rounded -= (scaled & ((half << 1) - 1) == half) & (rounded & 1)  # ties to even
    return np.clip(rounded, LEAST, 127).astype(np.int8)


def operands(*tensors: te.Tensor) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found = [rng.integers(-128, 128, t.shape).astype(np.int8) for t in tensors[:-1]]
    blocks = tensors[-1].shape[0]
    bias = rng.integers(-500, 500, (blocks, BLOCK))
    multiplier = rng.integers(10, 60, (blocks, BLOCK))
    shift = np.full_like(bias, SHIFT)
    return [*found, np.stack([bias, multiplier, shift], 1).astype(np.int32)]


def dense() -> Plain:
    """12 rows, 16 to 24 channels."""
    x = te.placeholder((4, 12, 1, BLOCK), "int8", "x")
    w = te.placeholder((6, 4, BLOCK, BLOCK), "int8", "w")
    param = te.placeholder((6, 3, BLOCK), "int32", "param")
    c, i = te.reduce_axis(4, "c"), te.reduce_axis(BLOCK, "i")

    def products(block, row, image, lane):
        factor = w[block, c, lane, i].astype("int32")
        return te.sum_of(x[c, row, image, i].astype("int32") * factor, (c, i))

    acc = te.compute((6, 12, 1, BLOCK), products, "acc")
    values = operands(x, w, param)
    sums = np.einsum("crbi,ocli->orbl", *(v.astype(np.int64) for v in values[:2]))
    return Plain([x, w, param, requantized(acc, param)], values, finished(sums, values[2]))


def convolution() -> Plain:
    """A window of 3 x 3 with a border, 8 to 16 channels."""
    x = te.placeholder((2, 6, 8, 1, BLOCK), "int8", "x")
    w = te.placeholder((4, 2, 3, 3, BLOCK, BLOCK), "int8", "w")
    param = te.placeholder((4, 3, BLOCK), "int32", "param")
    image = padded(x, (1, 1, 1, 1), 0)
    c, ky, kx = te.reduce_axis(2, "c"), te.reduce_axis(3, "ky"), te.reduce_axis(3, "kx")
    i = te.reduce_axis(BLOCK, "i")

    def products(block, row, col, batch, lane):
        factor = w[block, c, ky, kx, lane, i].astype("int32")
        element = image[c, row + ky, col + kx, batch, i].astype("int32")
        return te.sum_of(element * factor, (c, ky, kx, i))

    acc = te.compute((4, 6, 8, 1, BLOCK), products, "acc")
    values = operands(x, w, param)
    around = np.pad(values[0].astype(np.int64), ((0, 0), (1, 1), (1, 1), (0, 0), (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (1, 2))
    sums = np.einsum("chwbiyx,ocyxli->ohwbl", seen, values[1].astype(np.int64))
    return Plain([x, w, param, requantized(acc, param)], values, finished(sums, values[2]))


PLAIN = {"dense": dense, "convolution": convolution}


def built(plain: Plain, program: Program) -> vdla.Kernel:
    schedule = te.create_schedule(plain.args[-1])
    replay(from_text(to_text(program.log)), schedule, {GEMM.name: GEMM})
    return vdla.build_schedule(schedule, plain.args, target="sim", hw=PARAMS)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_tensorized_programs_compute_the_right_bits(name: str) -> None:
    plain = PLAIN[name]()
    cycles, kinds = set(), set()
    for seed in range(16):
        rng = np.random.default_rng(seed)
        program = accelerator_program(plain.args[-1], at_random(rng), GEMM)
        kinds.update(decided.opening.kind for decided in program.decided)
        try:
            kernel = built(plain, program)
        except VdlaError:  # it does not fit a scratchpad
            continue
        (found,) = kernel.run(*plain.operands)
        np.testing.assert_array_equal(found, plain.expected, err_msg=to_text(program.log))
        assert any(isinstance(insn, Gemm) for insn in kernel.program.insns)
        cycles.add(kernel.cycles)
    assert len(cycles) > 5 and kinds == set(Kind) - {Kind.UNROLL}


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_a_search_finds_a_schedule_and_goes_on_from_its_records(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evolution, "POPULATION", 16)
    plain, records = PLAIN[name](), tmp_path / "r.jsonl"
    first = vdla.auto_schedule(plain.args, "sim", hw=PARAMS, trials=20, records=records)
    assert len(Records.load(records).trials) == 20
    found = vdla.auto_schedule(plain.args, "sim", hw=PARAMS, trials=24, records=records)
    assert found.curve[:20] == first.curve and len(Records.load(records).trials) == 24
    kernel = vdla.build_schedule(found.schedule(), plain.args, target="sim", hw=PARAMS)
    (result,) = kernel.run(*plain.operands)
    np.testing.assert_array_equal(result, plain.expected)
    assert kernel.cycles == found.cost == min(found.curve)


def test_what_the_tensor_core_does_not_compute_is_refused() -> None:
    x = te.placeholder((4, 8, 1, BLOCK), "int8", "x")
    y = te.compute(x.shape, lambda *i: te.maximum(x[i], te.Const(0, "int8")), "y")
    rng = np.random.default_rng(0)
    with pytest.raises(ScheduleError, match="expected one sum of products"):
        accelerator_program(y, at_random(rng), GEMM)
    with pytest.raises(VdlaError, match="expected one sum of products"):
        vdla.auto_schedule([x, y], "sim", hw=PARAMS, trials=4)
