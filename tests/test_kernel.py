"""Schedules by hand on every target: values, cycles, loops, and one line for every mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla import te

from .compiler.interpret import interpret

SHAPE = (40, 1, 16)
ROWS = (40, 16)


def addition(scoped: bool) -> tuple[te.Schedule, list[te.Tensor]]:
    """``a + b``, saturated to int8; ``scoped`` for the accelerator."""
    a, b = te.placeholder(SHAPE, "int8", "a"), te.placeholder(SHAPE, "int8", "b")
    wide = te.compute(SHAPE, lambda *i: b[i].astype("int32") * 1, "wide")

    def rule(*i: te.Expr) -> te.Expr:
        return te.clip(a[i].astype("int32") + wide[i], -128, 127).astype("int8")

    out = te.compute(SHAPE, rule, "out")
    s = te.create_schedule(out)
    if scoped:
        local = s.cache_write(out, "out")
        s.cache_read(a, "inp", [local])
        s.cache_read(b, "inp", [wide])
        s[wide].set_scope("tmp")
    return s, [a, b, out]


def operands() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, SHAPE).astype(np.int8) for _ in "ab")
    return a, b


@pytest.mark.parametrize("target", ["cpu", "sim", pytest.param("rtl", marks=pytest.mark.slow)])
def test_values(target: str) -> None:
    kernel = vdla.build_schedule(*addition(target != "cpu"), target=target)
    a, b = operands()
    expected = np.clip(a.astype(np.int32) + b, -128, 127)
    assert (np.abs(expected) >= 127).mean() > 0.1
    for _ in range(2):
        (found,) = kernel.run(a, b)
        np.testing.assert_array_equal(found, expected.astype(np.int8))
    if target != "cpu":
        assert kernel.cycles > SHAPE[0]
        assert {region["name"] for region in kernel.program.meta["inputs"]} == {"a", "b"}


def test_threads_and_dumps(tmp_path: Path) -> None:
    a, b = operands()
    s, args = addition(scoped=False)
    s[args[-1]].parallel(args[-1].axes[0])
    (found,) = vdla.build_schedule(s, args, threads=2, name="add", dump_ir=tmp_path / "cpu").run(
        a, b
    )
    assert found.max() == 127
    vdla.build_schedule(*addition(scoped=True), target="sim", name="add", dump_ir=tmp_path / "sim")
    texts = [path.read_text() for path in tmp_path.glob("*/*")]
    assert any("parallel for i0 in 40" in text for text in texts)
    assert any("vector op=add" in text for text in texts)


def test_loops_as_text() -> None:
    s, args = addition(scoped=True)
    text = vdla.print_func(vdla.lower(s, args, "add"))
    assert text.startswith("func add(a: int8[40, 1, 16], b: int8[40, 1, 16], out: int8[40, 1, 16])")
    assert "allocate wide: int32[40, 1, 16] in tmp" in text


def test_mistakes() -> None:
    a, b = operands()
    kernel = vdla.build_schedule(*addition(scoped=False))
    with pytest.raises(vdla.VdlaError, match=r"main: expected 2 arrays \(a int8.*\), got 1"):
        kernel.run(a)
    with pytest.raises(vdla.VdlaError, match=r"main: b expects int8\[40, 1, 16\], got int16"):
        kernel.run(a, b.astype(np.int16))
    with pytest.raises(vdla.VdlaError, match="target 'cpu' has none; use sim or rtl"):
        _ = kernel.program
    with pytest.raises(vdla.VdlaError, match="expected a run on the accelerator, got none"):
        _ = kernel.cycles
    with pytest.raises(vdla.VdlaError, match="threads: expected an integer of at least 1, got 0"):
        vdla.build_schedule(*addition(scoped=False), threads=0)
    with pytest.raises(
        vdla.VdlaError, match="expected one of sim, rtl, fpga, cpu, cuda, opencl, got 'moon'"
    ):
        vdla.build_schedule(*addition(scoped=False), target="moon")
    with pytest.raises(vdla.VdlaError, match=r"out\.out: expected a memory of global"):
        vdla.build_schedule(*addition(scoped=True))  # no memory of the processor
    with pytest.raises(vdla.VdlaError, match="the vector unit does not compute"):
        x = te.placeholder(SHAPE, "int8", "x")
        y = te.compute(SHAPE, lambda *i: x[i] + x[i] * x[i], "y")
        s = te.create_schedule(y)
        s.cache_read(x, "inp", [s.cache_write(y, "out")])
        vdla.build_schedule(s, [x, y], target="sim")


# ---- int8 means the same everywhere ----

#: Values of int8 from an int32 element ``x``, and what they are in NumPy.
INT8 = {
    "clip": (lambda x: te.clip(x, -128, 127), lambda x: np.clip(x, -128, 127)),
    "from below": (lambda x: te.clip(x, 0, 127), lambda x: np.clip(x, 0, 127)),
    "from above": (lambda x: te.clip(x, -128, 50), lambda x: np.clip(x, -128, 50)),
    "wrap": (lambda x: x, lambda x: x.astype(np.int8)),
}


def doubled(rule: Callable[[te.Expr], te.Expr], scoped: bool) -> tuple:
    """``rule(a + a)`` as int8: the sums are in int32, of which many are beyond int8."""
    a = te.placeholder(SHAPE, "int8", "a")
    wide = te.compute(SHAPE, lambda *i: a[i].astype("int32") * 2, "wide")
    out = te.compute(SHAPE, lambda *i: rule(wide[i]).astype("int8"), "out")
    s = te.create_schedule(out)
    if scoped:
        local = s.cache_write(out, "out")
        s.cache_read(a, "inp", [wide])
        s[wide].set_scope("tmp")
        assert local.name
    return s, [a, out]


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", INT8)
def test_casts_to_int8_mean_the_same_everywhere(kind: str) -> None:
    rule, expected = INT8[kind]
    a, _ = operands()
    wanted = expected(a.astype(np.int32) * 2).astype(np.int8)
    for scoped in (False, True):
        s, args = doubled(rule, scoped)
        func = vdla.lower(s, args, "main")
        found = np.zeros(SHAPE, np.int8)
        interpret(func, a, found)
        np.testing.assert_array_equal(found, wanted)
    kernel = vdla.build_schedule(*doubled(rule, scoped=False), target="cpu")
    np.testing.assert_array_equal(kernel.run(a)[0], wanted)
    if kind == "wrap":
        with pytest.raises(vdla.VdlaError, match=r"saturates to int8, and .* wraps; write te.clip"):
            vdla.build_schedule(*doubled(rule, scoped=True), target="sim")
        return
    kernel = vdla.build_schedule(*doubled(rule, scoped=True), target="sim")
    np.testing.assert_array_equal(kernel.run(a)[0], wanted)


def test_sums_of_int8_wrap_and_their_maxima_do_not() -> None:
    """What int8 operators compute in int8, the accelerator computes only if it gives the same."""

    def schedule(rule: Callable[[te.Expr, te.Expr], te.Expr]) -> tuple:
        a = te.placeholder(SHAPE, "int8", "a")
        out = te.compute(SHAPE, lambda *i: rule(a[i], te.Const(3, "int8")), "out")
        s = te.create_schedule(out)
        s.cache_read(a, "inp", [s.cache_write(out, "out")])
        return s, [a, out]

    a, _ = operands()
    kernel = vdla.build_schedule(*schedule(te.maximum), target="sim")
    np.testing.assert_array_equal(kernel.run(a)[0], np.maximum(a, np.int8(3)))
    with pytest.raises(vdla.VdlaError, match="saturates to int8"):
        vdla.build_schedule(*schedule(lambda x, y: x + y), target="sim")


def test_the_error_says_what_the_vector_unit_computes() -> None:
    rule = te.clip
    with pytest.raises(vdla.VdlaError, match=r"computes a op b, where op is \+, -, .*te\.clip"):
        vdla.build_schedule(*doubled(lambda x: rule(x, -7, 9), scoped=True), target="sim")
