"""Native functions: the machine code computes what the Python does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from vdla.isa import native as native_module
from vdla.isa.check import check
from vdla.isa.depend import insert_tokens
from vdla.isa.native import Floats, Ints, Native, Shorts, Table, native
from vdla.isa.params import HwParams
from vdla.runtime.machine_code import compile_native
from vdla.sim.verify.random_programs import random_program

PARAMS = HwParams(
    block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=8, uop_depth=8, par_depth=4,
    tmp_depth=8, out_depth=8, max_burst_beats=8, queue_depth=2, fetch_depth=2,
)  # fmt: skip
THREE = 3


@native
def _third(x: int, table: Table) -> int:
    if x < 0:
        return -1
    return table[x % len(table), table.shape[1] - 1] + THREE


@native
def _everything(values: Ints, small: Shorts, table: Table, floats: Floats, n: int) -> float:
    """All that the compiler knows."""
    total, count = 0.0, 0
    for i in range(len(values)):
        if values[i] % 7 == 3 or values[i] // -2 < -40:
            continue
        left = n
        while left > 0:
            left -= 2
            if left == 5 and not i > 2:
                break
            total += floats[i] * left
        values[i] += max(left, _third(i - 3, table)) if i & 1 else min(i, 2)
        small[i] = values[i] ^ (i << 3) | i >> 1
        is_odd = small[i] % 2 == 1
        if is_odd:
            count += 1
    for i in range(10, 0, -3):
        total += i / 4 - count
    return -total


def _data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng(5)
    small = np.zeros(300, np.int32)
    return rng.integers(-100, 100, 300), small, rng.integers(0, 9, (4, 2)), rng.random(300), 9


def test_machine_code_computes_what_python_does() -> None:
    machine, plain = _data(), _data()
    assert compile_native(_everything)(*machine) == _everything.__wrapped__(*plain)
    for ours, theirs in zip(machine[:4], plain[:4], strict=True):
        assert np.array_equal(ours, theirs)
    assert any(machine[1])


@native
def _element(values: Ints, index: int) -> int:
    return values[index]


@pytest.mark.parametrize("index", [-1, 3, 1 << 40])
def test_an_index_outside_is_an_error(index: int) -> None:
    run = compile_native(_element)
    assert run(np.arange(3), 2) == 2
    with pytest.raises(IndexError, match="_element: an index is outside"):
        run(np.arange(3), index)


def test_arrays_must_be_of_the_type() -> None:
    run = compile_native(_element)
    for wrong in (np.arange(3.0), np.arange(6)[::2], np.zeros((3, 1), np.int64)):
        with pytest.raises(TypeError, match="values is no contiguous array of Ints"):
            run(wrong, 0)


@native
def _of_strings(n: int) -> int:
    return len("abc") + n


def test_other_python_is_refused() -> None:
    with pytest.raises(TypeError, match=r"_of_strings, .*not in the part of Python"):
        compile_native(_of_strings)


@native
def _calls(n: int) -> int:
    return _helper(n) + 1


@native
def _helper(n: int) -> int:
    return 2 * n


def test_a_function_that_a_test_changes_runs_as_python() -> None:
    assert _calls(4) == 9
    true = _helper.__wrapped__.__code__
    _helper.__wrapped__.__code__ = (lambda n: 5 * n).__code__
    try:
        assert _calls(4) == 21
    finally:
        _helper.__wrapped__.__code__ = true
    assert _calls(4) == 9


def _analysed(seed: int) -> tuple[Any, ...]:
    program = random_program(PARAMS, seed, length=50)
    without = [insn.with_tokens(insn.pop & 0, insn.push & 0) for insn in program.insns]
    found = check(type(program)(PARAMS, tuple(without), program.image, program.meta, 1 << 20))
    return insert_tokens(without, PARAMS, program.image), found


@pytest.mark.parametrize("seed", range(3))
def test_analyses_are_the_same_without_a_compiler(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Native] = []
    kept = native_module._compiler[0]

    def compiler(function: Native) -> Callable[..., Any]:
        compiled.append(function)
        return kept(function)

    monkeypatch.setattr(native_module, "_compiler", [compiler])
    fast = _analysed(seed)
    monkeypatch.setattr(native_module, "_compiler", [])
    assert _analysed(seed) == fast
    assert fast[1], "nothing is found in a program without tokens"
