"""Inputs of ONNX models that are outputs of the run before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest
import vdla
from vdla.cli import run_app

SUMS = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 18]> g (float[1, 4] x, float[1, 4] sum, int64[1] count,'
    " float[batch, 4] wide) => (float[1, 4] y, float[1, 4] next, int64[1] more, float[1, 3] part,"
    " float[batch, 4] same) {one = Constant<value_ints=[1]>() next = Add(x, sum)"
    " more = Add(count, one) f = Cast<to=1>(more) y = Div(next, f)"
    " same = Neg(wide) k = Constant<value_ints=[3, 1]>() part, rest = Split<axis=1>(x, k)}"
)
STATES = {"sum": "next", "count": "more"}


def means(module: vdla.Module, count: int = 3) -> list[float]:
    """The first elements of the first output, of inputs 1, 2 ..."""
    found = []
    for number in range(1, count + 1):
        given = {"x": np.full((1, 4), number, np.float32), "wide": np.ones((1, 4), np.float32)}
        found.append(float(module.run(given)[0][0, 0]))
    return found


def test_states_are_kept_from_run_to_run(tmp_path: Path) -> None:
    module = vdla.compile(SUMS, "cpu", states=STATES)
    assert [t.name for t in module.inputs] == ["x", "wide"]
    assert [t.name for t in module.outputs] == ["y", "part", "same"]
    assert means(module) == [1, 1.5, 2]
    assert means(module, 1) == [7 / 4]
    module.reset()
    assert means(module) == [1, 1.5, 2]
    module.save(tmp_path / "saved")
    assert means(vdla.load(tmp_path / "saved")) == [1, 1.5, 2]


def test_states_begin_with_what_is_given(tmp_path: Path) -> None:
    """Also after a reset, and from a folder."""
    first = {"sum": np.full((1, 4), 8, np.float32), "count": np.array([1])}
    module = vdla.compile(SUMS, "cpu", states=STATES, initial=first)
    assert means(module) == pytest.approx([9 / 2, 11 / 3, 14 / 4])
    module.reset()
    assert means(module, 1) == [9 / 2]
    module.save(tmp_path / "saved")
    assert means(vdla.load(tmp_path / "saved"), 1) == [9 / 2]
    module = vdla.compile(SUMS, "cpu", states=STATES, initial={"count": np.array([1])})
    assert means(module, 1) == [1 / 2]


@pytest.mark.parametrize(
    ("initial", "said"),
    [
        ({"x": np.zeros((1, 4))}, r"expected names of states \(sum, count\), got 'x'"),
        ({"sum": np.zeros(4, np.float32)}, r"expected float32\[1,4\] of 'sum', got float32 \[4\]"),
        ({"count": np.zeros(1)}, r"expected int64\[1\] of 'count', got float64 \[1\]"),
    ],
)
def test_initial_values_that_do_not_fit(initial: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(vdla.VdlaError, match=f"^initial: {said}"):
        vdla.compile(SUMS, "cpu", states=STATES, initial=initial)


def test_states_on_the_command_line(tmp_path: Path, capsys) -> None:
    path, saved = tmp_path / "sums.onnx", tmp_path / "saved"
    onnx.save(SUMS, path)
    ties = [text for a, b in STATES.items() for text in ("--state", f"{a}={b}")]
    assert run_app(["run", str(path), "--target", "cpu", *ties]) == 0
    out = capsys.readouterr().out
    assert "output y" in out and "output next" not in out
    assert run_app(["compile", str(path), "--target", "cpu", "-o", str(saved), *ties]) == 0
    assert means(vdla.load(saved)) == [1, 1.5, 2]


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({"z": "next"}, r"expected an input of the model \(x, sum, count, wide\), got 'z'"),
        ({"sum": "z"}, r"expected an output of the model \(y, next, more, .*\), got 'z'"),
        (
            {"sum": "part"},
            r"expected an output like 'sum', float32\[1,4\], or that with places added behind it,"
            r" got 'part', float32\[1,3\]",
        ),
        (
            {"count": "next"},
            r"expected an output like 'count', int64\[1\], or .*, got 'next', float32\[1,4\]",
        ),
        ({"sum": "next", "x": "next"}, "expected another output for 'x', got 'next' again"),
    ],
)
def test_states_that_do_not_fit(states: dict[str, str], said: str) -> None:
    with pytest.raises(vdla.VdlaError, match=f"^states: {said}") as error:
        vdla.compile(SUMS, "cpu", states=states)
    assert "\n" not in str(error.value)


def test_a_model_of_nothing_but_states() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[4] x) => (float[4] y) {y = Neg(x)}'
    )
    with pytest.raises(vdla.VdlaError, match="states: expected an output besides the states"):
        vdla.compile(model, "cpu", states={"x": "y"})


WINDOW = (
    '<ir_version: 8, opset_import: ["" : 18]> g (float[1, N] x, float[1, 1] place,'
    " float[1, P] past) => (float[1, N] y, float[1, M] joined) {"
    " new = Add(x, place) ORDER s = ReduceSum<keepdims=1>(joined) y = Mul(x, s) }"
)


def window(order: str = "joined = Concat<axis=1>(past, new)") -> onnx.ModelProto:
    return onnx.parser.parse_model(WINDOW.replace("ORDER", order))


def test_of_an_output_that_is_longer_the_last_places_are_kept(tmp_path: Path) -> None:
    sizes = {"N": 2, "P": 3}
    module = vdla.compile(window(), "cpu", states={"past": "joined"}, dims=sizes)
    assert [t.name for t in module.outputs] == ["y"]
    kept, ones = np.zeros((1, 3), np.float32), np.ones((1, 2), np.float32)
    module.save(tmp_path / "saved")
    saved = vdla.load(tmp_path / "saved")
    for number in range(4):
        given = {"x": ones * (number + 1), "place": np.full((1, 1), number, np.float32)}
        joined = np.concatenate([kept, given["x"] + number], axis=1)
        kept = joined[:, -3:]
        for each in (module, saved):
            [got] = each.run(given)
            np.testing.assert_array_equal(got, given["x"] * joined.sum())


@pytest.mark.parametrize(
    "order",
    [
        "joined = Concat<axis=1>(new, past)",
        "twice = Concat<axis=1>(past, new) joined = Mul(twice, place)",
        "other = Neg(past) joined = Concat<axis=1>(other, new)",
    ],
)
def test_an_output_that_is_longer_in_another_way(order: str) -> None:
    with pytest.raises(vdla.VdlaError, match=r"or that with places added behind it, got 'joined'"):
        vdla.compile(window(order), "cpu", states={"past": "joined"}, dims={"N": 2, "P": 3})
