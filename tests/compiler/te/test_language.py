"""What a description can say beyond elements and sums: scans, reducers and loop programs of one's
own; as golden text, and with the values of NumPy and ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from vdla.compiler.targets.cpu.graph_code import compile_func
from vdla.compiler.te.expr import Const, Expr, Read, Var, cast, maximum, minimum, select
from vdla.compiler.te.intrinsic import TensorIntrin
from vdla.compiler.te.schedule import Schedule, create_schedule
from vdla.compiler.te.tensor import (
    Tensor,
    comm_reducer,
    compute,
    extern,
    placeholder,
    reduce_axis,
    scan,
    sum_of,
)
from vdla.compiler.tir.ir import Buffer, For, Stmt, Store
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.printer import print_func
from vdla.compiler.tir.verify import verify
from vdla.isa.errors import VdlaError

from ..interpret import interpret

Golden = Callable[[str, str], None]


def run(schedule: Schedule, args: list[Tensor], *arrays: np.ndarray) -> tuple[str, np.ndarray]:
    """The loops, and the result, which interpreter and machine code agree on."""
    func = lower(schedule, args)
    verify(func)
    results = [np.full(args[-1].shape, 85, args[-1].dtype) for _ in range(2)]
    interpret(func, *arrays, results[0])
    compile_func(func)(*arrays, results[1])
    np.testing.assert_array_equal(*results)
    return print_func(func), results[0]


def numbers(*shape: int, dtype: str = "int32") -> np.ndarray:
    return np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)


# ---- scan ----


def running_sum() -> tuple[Tensor, Tensor]:
    """Sums along the rows of x."""
    x, state = placeholder((5, 4), "int32", "x"), placeholder((5, 4), "int32", "state")
    first = compute((1, 4), lambda t, i: x[t, i], "first")
    rows = compute((5, 4), lambda t, i: state[t - 1, i] + x[t, i], "rows")
    return x, scan(first, rows, state, "sums")


def test_scan(golden: Golden) -> None:
    x, y = running_sum()
    text, got = run(create_schedule(y), [x, y], numbers(5, 4))
    np.testing.assert_array_equal(got, np.cumsum(numbers(5, 4), 0))
    golden("scan.txt", text)


def test_scan_scheduled(golden: Golden) -> None:
    """Inside a row all primitives are free; the first row and the others have no buffers here."""
    x, y = running_sum()
    s = create_schedule(y)
    for stage in s.stages:
        if stage.name in ("first", "rows"):
            stage.compute_inline()
    outer, inner = s[y].split(y.axes[1], 2)
    s[y].parallel(outer)
    s[y].unroll(inner)
    text, got = run(s, [x, y], numbers(5, 4))
    np.testing.assert_array_equal(got, np.cumsum(numbers(5, 4), 0))
    golden("scan_scheduled.txt", text)


def fibonacci() -> tuple[Tensor, Tensor]:
    """Two first rows, and sums of the two rows before."""
    x, state = placeholder((2, 3), "int64", "x"), placeholder((8, 3), "int64", "state")
    first = compute((2, 3), lambda t, i: x[t, i], "first")
    rows = compute((8, 3), lambda t, i: state[t - 1, i] + state[t - 2, i], "rows")
    return x, scan(first, rows, state, "f")


def test_scan_of_two_rows() -> None:
    x, y = fibonacci()
    start = np.array([[0, 2, 1], [1, 1, 3]])
    _, got = run(create_schedule(y), [x, y], start)
    expected = [*start]
    while len(expected) < 8:
        expected.append(expected[-1] + expected[-2])
    np.testing.assert_array_equal(got, expected)


def test_recurrent_network(golden: Golden) -> None:
    """h[t] = max(0, W x[t] + R h[t-1]) on small integers in float32, exact in any order; the
    product with the state is a tensor inside the scan, its reduction in two steps."""
    steps, inputs, hidden = 6, 3, 4
    x = placeholder((steps, inputs), "float32", "x")
    w, r = (placeholder((hidden, n), "float32", name) for n, name in ((inputs, "w"), (hidden, "r")))
    state = placeholder((steps, hidden), "float32", "state")
    j, k = reduce_axis(inputs, "j"), reduce_axis(hidden, "k")
    wx = compute((steps, hidden), lambda t, i: sum_of(x[t, j] * w[i, j], j), "wx")
    first = compute((1, hidden), lambda t, i: maximum(wx[t, i], 0.0), "first")
    rh = compute((steps, hidden), lambda t, i: sum_of(state[t - 1, k] * r[i, k], k), "rh")
    rows = compute((steps, hidden), lambda t, i: maximum(wx[t, i] + rh[t, i], 0.0), "rows")
    h = scan(first, rows, state, "h")

    s = create_schedule(h)
    _, inner = s[rh].split(k, 2)
    partial = s.rfactor(rh, inner, factor_axis=2)
    s[partial].compute_at(s[rh], rh.axes[1])
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-1, 2, t.shape).astype(np.float32) for t in (x, w, r)]
    text, got = run(s, [x, w, r, h], *arrays)
    np.testing.assert_array_equal(got, onnx_rnn(*arrays))
    golden("recurrent_network.txt", text)


def onnx_rnn(x: np.ndarray, w: np.ndarray, r: np.ndarray) -> np.ndarray:
    """ONNX Runtime's RNN with Relu."""
    arrays = {"x": x[:, None], "w": w[None], "r": r[None]}
    node = helper.make_node(
        "RNN", list(arrays), ["y"], activations=["Relu"], hidden_size=r.shape[0]
    )
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in arrays.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "rnn", values, [output])
    imports = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, arrays)[0])[:, 0, 0]


# ---- reducers ----

either = comm_reducer(lambda a, b: a | b, lambda dtype: Const(0, dtype), "either")


def test_comm_reducer(golden: Golden) -> None:
    x, k = placeholder((3, 5), "uint8", "x"), reduce_axis(5, "k")
    y = compute((3,), lambda i: either(x[i, k], k), "y")
    array = numbers(3, 5, dtype="uint8")
    text, got = run(create_schedule(y), [x, y], array)
    np.testing.assert_array_equal(got, np.bitwise_or.reduce(array, 1))
    golden("comm_reducer.txt", text)


@pytest.mark.parametrize("how", ["plain", "tiled", "factored", "tensorized"])
def test_a_sum_starts_from_a_value(how: str, golden: Golden) -> None:
    """Once for each result, before the loops that add up, whatever their order; the intrinsic sets
    sums to zero only, so that it leaves it to a loop."""
    x, w, y = sum_from_a_value()
    s, (i, j), (k,) = create_schedule(y), y.axes, y.reduce_axes
    match how:
        case "tiled":
            outer, inner = s[y].split(j, 3)
            s[y].reorder(i, outer, k, inner)
        case "factored":
            s.rfactor(y, k)
        case "tensorized":
            r = reduce_axis(3, "r")
            a, b = placeholder((3,), "int32", "a"), placeholder((3, 8), "int32", "b")
            dots = compute((8,), lambda o: sum_of(a[r] * b[r, o], r), "dots")
            s[y].tensorize(j, TensorIntrin("dots", dots))
    arrays = numbers(6, 3), numbers(3, 8)
    text, got = run(s, [x, w, y], *arrays)
    np.testing.assert_array_equal(got, arrays[0] @ arrays[1] + 5 * arrays[1][0])
    golden(f"first_value_{how}.txt", text)


def test_tensorized_reducer() -> None:
    """An intrinsic with the same reducer fits, one with another does not."""
    x, k = placeholder((3, 5), "uint8", "x"), reduce_axis(5, "k")
    y = compute((3,), lambda i: either(x[i, k], k), "y")

    def scheduled(reduce: Callable[..., Expr]) -> Schedule:
        row, r = placeholder((5,), "uint8", "row"), reduce_axis(5, "r")
        intrinsic = TensorIntrin("any", compute((1,), lambda i: reduce(row[r], r), "any"))
        s = create_schedule(y)
        _, one = s[y].split(y.axes[0], 1)
        s[y].tensorize(one, intrinsic)
        return s

    array = numbers(3, 5, dtype="uint8")
    text, got = run(scheduled(either), [x, y], array)
    np.testing.assert_array_equal(got, np.bitwise_or.reduce(array, 1))
    assert "any.update(y[i.o], x[i.o, 0])" in text
    with pytest.raises(VdlaError, match=r"any computes any\[i\] \+ row\[r\], the nest"):
        lower(scheduled(sum_of), [x, y])


def test_where_the_largest_is(golden: Golden) -> None:
    """argmax: value and place in one int64, the greater value first, then the smaller place."""
    n = 11
    x, k = placeholder((4, n), "int32", "x"), reduce_axis(n, "k")
    largest = comm_reducer(maximum, lambda dtype: Const(-(2**63), dtype), "largest")

    def key(i: Expr) -> Expr:
        return (x[i, k].astype("int64") << 32) + cast("int64", n - 1 - k)

    best = compute((4,), lambda i: largest(key(i), k), "best")
    y = compute((4,), lambda i: n - 1 - best[i].astype("int32"), "y")
    s = create_schedule(y)
    outer, _ = s[best].split(k, nparts=3)
    s.rfactor(best, outer)
    array = numbers(4, n) // 30
    text, got = run(s, [x, y], array)
    np.testing.assert_array_equal(got, np.argmax(array, 1))
    golden("where_the_largest_is.txt", text)


# ---- loop programs ----


def reversed_rows(inputs: list[Buffer], output: Buffer) -> Stmt:
    i, j = Var("i"), Var("j")
    store = Store(output, (i, j), Read(inputs[0], (2 - i, j)))
    return For(i, 3, "serial", For(j, 4, "vectorized", store))


def test_extern(golden: Golden) -> None:
    """Between two tensors, the first of which is a copy in another buffer."""
    x = placeholder((3, 4), "int32", "x")
    e = extern((3, 4), [x], reversed_rows, "int32", "e")
    y = compute((3, 4), lambda i, j: e[i, j] + i, "y")
    s = create_schedule(y)
    s.cache_read(x, "global", [e])
    s[e].storage_align(e.axes[0], 8)
    s[y].reorder(y.axes[1], y.axes[0])
    array = numbers(3, 4)
    text, got = run(s, [x, y], array)
    np.testing.assert_array_equal(got, array[::-1] + np.arange(3)[:, None])
    golden("extern.txt", text)


# ---- what is refused ----


PAIRS = placeholder((4, 2), "int32", "pairs")


def scanned(change: Callable[[Schedule, Tensor], object]) -> None:
    x, y = running_sum()
    s = create_schedule(y)
    change(s, y)
    verify(lower(s, [x, y]))


def rows_of(s: Schedule) -> Tensor:
    return next(stage.tensor for stage in s.stages if stage.name == "rows")


def later_row() -> None:
    x, state = placeholder((5,), "int32", "x"), placeholder((5,), "int32", "state")
    first = compute((1,), lambda t: x[t], "first")
    rows = compute((5,), lambda t: state[minimum(t + 1, 4)] + x[t], "rows")
    y = scan(first, rows, state, "y")
    lower(create_schedule(y), [x, y])


def too_early_row() -> None:
    x, state = placeholder((5,), "int32", "x"), placeholder((5,), "int32", "state")
    first = compute((1,), lambda t: x[t], "first")
    rows = compute((5,), lambda t: state[t - 2] + x[t], "rows")
    y = scan(first, rows, state, "y")
    verify(lower(create_schedule(y), [x, y]))


def unlike() -> None:
    tensors = [placeholder(shape, "int32", "x") for shape in ((1, 3), (5, 4), (5, 4))]
    scan(*tensors)


def inlined_into_a_program() -> None:
    x = placeholder((3, 4), "int32", "x")
    a = compute((3, 4), lambda i, j: x[i, j] + 1, "a")
    e = extern((3, 4), [a], reversed_rows, "int32", "e")
    s = create_schedule(e)
    s[a].compute_inline()
    lower(s, [x, e])


def no_statement() -> None:
    x = placeholder((3,), "int32", "x")
    e = extern((3,), [x], lambda inputs, output: None, "int32", "e")
    lower(create_schedule(e), [x, e])


def outside() -> None:
    x = placeholder((2, 4), "int32", "x")
    e = extern((2, 4), [x], reversed_rows, "int32", "e")
    verify(lower(create_schedule(e), [x, e]))


def part_of_a_program() -> None:
    x = placeholder((3, 4), "int32", "x")
    e = extern((3, 4), [x], reversed_rows, "int32", "e")
    y = compute((3, 4), lambda i, j: e[i, j] + 1, "y")
    s = create_schedule(y)
    s[e].compute_at(s[y], y.axes[0])


def narrow_reducer() -> None:
    x, k = placeholder((3,), "int32", "x"), reduce_axis(3, "k")
    few = comm_reducer(lambda a, b: select(a < b, a, b), lambda dtype: Const(0, "int8"), "few")
    few(x[k], k)


K = reduce_axis(3, "k")


def sum_from_a_value() -> tuple[Tensor, Tensor, Tensor]:
    """A product of matrices, and a computed number for each column."""
    x, w = placeholder((6, 3), "int32", "x"), placeholder((3, 8), "int32", "w")
    b = compute((8,), lambda j: w[0, j] * 5, "b")
    k = reduce_axis(3, "k")
    return x, w, compute((6, 8), lambda i, j: sum_of(x[i, k] * w[k, j], k, b[j]), "y")


def late_first_value() -> None:
    x, w, y = sum_from_a_value()
    s = create_schedule(y)
    b = next(stage for stage in s.stages if stage.name == "b")
    b.compute_at(s[y], y.reduce_axes[0])
    lower(s, [x, w, y])


REFUSED: dict[str, tuple[str, Callable[[], object]]] = {
    "parallel rows": (
        r"scan sums: rows are computed in order; the loop t\[5\] must stay outermost",
        lambda: scanned(lambda s, y: s[y].parallel(y.axes[0])),
    ),
    "rows inside": (
        r"scan sums: rows are computed in order.*got loops \[i0\[4\], t\[5\]\]",
        lambda: scanned(lambda s, y: s[y].reorder(y.axes[1], y.axes[0])),
    ),
    "state outside": (
        r"scan sums: rows reads its state; compute it at t\[5\] of sums, or inside",
        lambda: scanned(lambda s, y: s[rows_of(s)].compute_root()),
    ),
    "copied state": (
        r"scan sums: state.tmp reads its state; compute it at t\[5\] of sums, or inside",
        lambda: scanned(
            lambda s, y: s.cache_read(y.state, "tmp", [rows_of(s)])  # type: ignore[arg-type]
        ),
    ),
    "cache of a scan": (
        "cache_write of sums: a scan reads its rows where it writes them",
        lambda: scanned(lambda s, y: s.cache_write(y, "tmp")),
    ),
    "inlined scan": (
        "compute_inline: sums is a scan; it is computed whole, at root",
        lambda: scanned(lambda s, y: s[y].compute_inline()),
    ),
    "a later row": (
        r"scan y: its state is read at row min\(t \+ 1, 4\), expected one bef",
        later_row,
    ),
    "a row before the first": ("index 0 of y, t - 2, cannot be shown to lie in 0", too_early_row),
    "unlike rows": (r"scan scan: expected first rows x\[1, 3\]:int32 of a placeholder", unlike),
    "inlined into a program": (
        "compute_inline: a is read by the loop program of e, which needs it in memory",
        inlined_into_a_program,
    ),
    "no statement": ("extern e: expected a statement of its rule, got None", no_statement),
    "outside the buffers": ("index 0 of e, i, cannot be shown to lie in 0 .. 1", outside),
    "part of a program": (
        "compute_at: e is a loop program of its own; it is computed whole, at root",
        part_of_a_program,
    ),
    "first value along the sum": (
        r"sum: expected a first value of int32 that is the same along",
        lambda: sum_of(Const(1), K, K.var),
    ),
    "first value of another dtype": (
        r"sum: expected a first value of int32 .* of int8",
        lambda: sum_of(Const(1), K, Const(1, "int8")),
    ),
    "first value computed inside": (
        r"compute_at: b is attached in y at k\[3\], but its first value reads it",
        late_first_value,
    ),
    **{
        f"Python's {name} in a rule": (
            "expected no Python condition on an expression, .* use te.select for if",
            lambda rule=rule: compute((4,), rule),
        )
        for name, rule in {
            "if": lambda i: PAIRS[i, 0] if PAIRS[i, 0] > 0 else PAIRS[i, 1],
            "max": lambda i: max(PAIRS[i, 0], PAIRS[i, 1]),
            "and": lambda i: PAIRS[i, 0] and PAIRS[i, 1],
            "not": lambda i: not PAIRS[i, 0],
        }.items()
    },
    **{
        f"Python's {name} in a rule": (
            r"expected no == of expressions in a rule: .* use \.equal",
            lambda rule=rule: compute((4,), rule),
        )
        for name, rule in {
            "== of elements": lambda i: PAIRS[i, 0] == PAIRS[i, 1],
            "== of an index": lambda i: PAIRS[0, 0] if i == 0 else PAIRS[i, 0],
            "in": lambda i: PAIRS[i, 0] in (PAIRS[i, 1], Const(0)),
        }.items()
    },
    "== of expressions outside of a rule": (
        r"expected an expression or a number, got False: == compares expressions",
        lambda: select(PAIRS[0, 0] == PAIRS[0, 1], PAIRS[0, 0], 1),
    ),
    "identity of another dtype": (
        "few: expected that identity gives int32, got int8",
        narrow_reducer,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    message, use = REFUSED[case]
    with pytest.raises(VdlaError, match=message) as error:
        use()
    assert "\n" not in str(error.value)
