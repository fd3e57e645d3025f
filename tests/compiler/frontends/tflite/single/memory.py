"""Rows of operators with state, and of those with subgraphs: each model runs three times."""

from __future__ import annotations

import numpy as np
import tflite

from .draft import Case, Draft, Maker, Quant

RUNS = 3
_TANH = tflite.ActivationFunctionType.TANH


def variable(d: Draft, shape: tuple[int, ...], dtype: str, quant: Quant | None) -> int:
    given = {} if quant is None else {"scale": [quant[0]], "zero": [quant[1]]}
    return d.builder.tensor(shape, dtype, variable=True, **given)


def svdf(d: Draft) -> Case:
    d.runs, real = RUNS, d.dtype == "float32"
    batch, width, units, rank, memory = (d.size(1, n) for n in (3, 6, 5, 3, 6))
    filters, stored = units * rank, str(d.rng.choice(["int8", "int16"]))
    x = d.x((batch, width), quant=d.quant())
    scales = [float(np.exp(d.rng.uniform(-6, -3))) for _ in range(4)]
    zero = d.size(-20, 20) if stored == "int8" else 0
    if real:
        weights = [d.constant(d.draw(s, "float32", -1, 1), "float32")
                   for s in ((filters, width), (filters, memory))]  # fmt: skip
    else:
        weights = [
            d.constant(d.draw((filters, width), "int8", -127, 127), "int8", (scales[0], 0)),
            d.constant(d.draw((filters, memory), stored, -127, 127), stored, (scales[1], 0)),
        ]
    kept = (batch, memory * filters)
    step = None if real else (scales[2] * (20 if stored == "int8" else 0.1), zero)
    kind = "float32" if real else "int32"
    bias = d.constant(d.draw((units,), kind, -500, 500), kind,
                      step and (step[0] * scales[1], 0))  # fmt: skip
    state = variable(d, kept, kind if real else stored, step)
    code = tflite.ActivationFunctionType.RELU
    return d.case("SVDF", [x, *weights, bias, state], [d.y((batch, units))], "SVDFOptions",
                  Rank=rank, FusedActivationFunction=code)  # fmt: skip


def lstm(d: Draft) -> Case:
    d.runs, real = RUNS, d.dtype == "float32"
    batch, steps, width, units = (d.size(1, n) for n in (3, 4, 5, 6))
    major = d.chance()
    shape = (steps, batch) if major else (batch, steps)
    quant = d.quant()
    x = d.x((*shape, width), quant=quant)
    out = None if real else (float(np.exp(d.rng.uniform(-5.5, -4.5))), quant[1] if quant else 0)
    if d.dtype == "int16":
        out = (2.0**-15, 0)

    def matrix(rows: int, columns: int, scale: float) -> int:
        if real:
            return d.constant(d.draw((rows, columns), "float32", -1, 1), "float32")
        return d.constant(d.draw((rows, columns), "int8", -127, 127), "int8", (scale, 0))

    low, high = (-1.0, 1.0) if real else (-3000, 3000)
    kind = {"float32": "float32", "int8": "int32", "int16": "int64"}.get(d.dtype, "int32")
    # Scales with which the sums reach the ends of the activations, and mostly stay inside.
    step = 2e-4 / (256 if d.dtype == "int16" else 1)
    inputs = [matrix(units, width, step / quant[0] if quant else 1.0) for _ in range(4)]
    states = [matrix(units, units, step / out[0] if out else 1.0) for _ in range(4)]
    biases = [d.constant(d.draw((units,), kind, low, high), kind) for _ in range(4)]
    hidden = variable(d, (batch, units), d.dtype, out)
    cell = variable(d, (batch, units), "float32" if real else "int16",
                    None if real else (2.0 ** -d.size(9, 14), 0))  # fmt: skip
    operands = [x, *inputs, *states, -1, -1, -1, *biases, -1, -1, hidden, cell, -1, -1, -1, -1]
    y = d.tensor((*shape, units), d.dtype, out)
    clip = float(d.rng.choice([0.0, 0.5, 10.0]))
    return d.case(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", operands, [y], "UnidirectionalSequenceLSTMOptions",
        FusedActivationFunction=_TANH, CellClip=clip, TimeMajor=major,
    )  # fmt: skip


def handle(d: Draft, name: str = "kept") -> int:
    """A tensor with a variable's handle."""
    index = d.builder.tensor((), "resource")
    text = d.builder.builder.CreateString(name)
    d.builder.operator("VAR_HANDLE", [], [index], "VarHandleOptions", SharedName=text)
    return index


def stateful(d: Draft) -> Case:
    """A running sum, which another subgraph may set before the first run."""
    d.runs, shape, number = RUNS, d.shape(), 0
    quant = d.quant()
    if d.chance():
        at = handle(d)
        first = d.constant(d.draw(shape, d.dtype, 0, 100), d.dtype, quant)
        d.builder.operator("ASSIGN_VARIABLE", [at, first], [])
        number = d.builder.subgraph([], [])
        d.builder.operator("CALL_ONCE", [], [], "CallOnceOptions", InitSubgraphIndex=number)
    x, at = d.x(shape, quant=quant), handle(d)
    before = d.tensor(shape, quant=quant)
    d.builder.operator("READ_VARIABLE", [at], [before])
    after = d.tensor(shape, quant=quant)
    if d.dtype in ("float32", "int8", "int16", "int32"):
        d.builder.operator("ADD", [before, x], [after], "AddOptions")
    else:
        d.builder.operator("RESHAPE", [x], [after])
    d.builder.operator("ASSIGN_VARIABLE", [at, after], [])
    again = d.tensor(shape, quant=quant)
    return d.case("READ_VARIABLE", [at], [again])


def branches(d: Draft) -> Case:
    """A branch by a flag that is an input; each branch has its own operator."""
    shape, quant = d.shape(), d.quant()
    numbers = []
    for kind in ("MAXIMUM", "MINIMUM"):
        a, b = (d.tensor(shape, quant=quant) for _ in range(2))
        y = d.tensor(shape, quant=quant)
        if d.dtype == "uint8":  # of which there is no maximum
            d.builder.operator("RESHAPE", [a if kind == "MAXIMUM" else b], [y])
        elif d.dtype == "bool":
            d.builder.operator(f"LOGICAL_{'AND' if kind == 'MAXIMUM' else 'OR'}", [a, b], [y])
        else:
            d.builder.operator(kind, [a, b], [y], "MaximumMinimumOptions")
        numbers.append(d.builder.subgraph([a, b], [y]))
    flag = d.x((1,), "bool")
    operands = [flag, d.x(shape, quant=quant), d.x(shape, quant=quant)]
    return d.case("IF", operands, [d.tensor(shape, quant=quant)], "IfOptions",
                  ThenSubgraphIndex=numbers[0], ElseSubgraphIndex=numbers[1])  # fmt: skip


def loop(d: Draft) -> Case:
    """A tensor that is doubled, or turned, for a known number of steps."""
    shape, quant, steps = d.shape(), d.quant(), d.size(0, 5)
    counter, value = d.tensor((1,), "int32"), d.tensor(shape, quant=quant)
    less, verdict = d.constant([steps]), d.tensor((1,), "bool")
    d.builder.operator("LESS", [counter, less], [verdict], "LessOptions")
    tests = d.builder.subgraph([counter, value], [verdict])
    counter, value = d.tensor((1,), "int32"), d.tensor(shape, quant=quant)
    one, following = d.constant([1]), d.tensor((1,), "int32")
    d.builder.operator("ADD", [counter, one], [following], "AddOptions")
    made = d.tensor(shape, quant=quant)
    if d.dtype in ("float32", "int8", "int16", "int32"):
        d.builder.operator("ADD", [value, value], [made], "AddOptions")
    else:
        d.builder.operator("REVERSE_V2", [value, d.constant([0])], [made])
    body = d.builder.subgraph([counter, value], [following, made])
    operands = [d.constant([0]), d.x(shape, quant=quant)]
    results = [d.tensor((1,), "int32"), d.tensor(shape, quant=quant)]
    return d.case("WHILE", operands, results, "WhileOptions",
                  CondSubgraphIndex=tests, BodySubgraphIndex=body)  # fmt: skip


ROWS: dict[str, Maker] = {
    "ASSIGN_VARIABLE": stateful,
    "CALL_ONCE": stateful,
    "IF": branches,
    "READ_VARIABLE": stateful,
    "SVDF": svdf,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": lstm,
    "VAR_HANDLE": stateful,
    "WHILE": loop,
}
