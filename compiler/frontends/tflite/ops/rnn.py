"""Recurrent layers of float32 in both directions, and what they share with LSTMs.

The time steps of a sequence are read one after the other; the products with all inputs are one
matrix product. Weights may be int8: then the rows of every product are quantised while they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tflite

from ....graph.ir import Tensor
from ....graph.ops.linear import MatMul
from ....graph.ops.movement import Concat
from ....te.expr import Expr
from ..graph import ACTIVATIONS, Call, Rows
from .rules import clipped, named
from .weights import products, stored_weight

# ---- memory --------------------------------------------------------------------------------------


def state_of(call: Call, position: int, shape: tuple[int, ...], dtype: str) -> Tensor:
    """The value of a variable in another shape."""
    tensor = call.operand(position)
    if not tensor.variable or tensor.dtype != dtype:
        found = f"{tensor.dtype} of {tensor}" if tensor.variable else f"{tensor}, which is none"
        raise call.refuse(f"expected a variable of {dtype}, got {found}")
    if int(np.prod(tensor.shape)) != int(np.prod(shape)):
        raise call.refuse(f"expected {list(shape)} of {tensor}, got {list(tensor.shape)}")
    return call.reshape(call.tensor(position), shape)


def keep(call: Call, position: int, value: Tensor) -> None:
    """The next value of a variable."""
    tensor = call.operand(position)
    call.importer.assign(tensor, call.reshape(value, call.importer.shape(tensor)))


def matrix(call: Call, position: int, dtypes: Sequence[str], columns: int | None) -> np.ndarray:
    """A constant matrix of weights, of one scale and zero point 0 if it is of integers."""
    tensor, data = call.operand(position), call.constant(position, "weight")
    wrong = tensor.dtype not in dtypes or data.ndim != 2
    if wrong or (columns is not None and data.shape[1] != columns):
        raise call.refuse(
            f"expected {' or '.join(dtypes)} in {columns or 'some'} columns, got"
            f" {tensor.dtype}{list(data.shape)} of {tensor}"
        )
    if tensor.dtype != "float32" and (tensor.scale.size != 1 or tensor.zero_point[0]):
        raise call.refuse(f"expected one scale and zero point 0 of {tensor}")
    return data


# ---- sequences -----------------------------------------------------------------------------------


_Codes = tflite.ActivationFunctionType


def activated(call: Call, x: Expr) -> Expr:
    """The layer's activation."""
    code = call.option("FusedActivationFunction")
    if code == _Codes.TANH:
        return named("tanh", x)
    if code not in ACTIVATIONS:
        raise call.refuse(f"expected a known activation, got number {code}")
    return clipped(x, *ACTIVATIONS[code])


@dataclass(frozen=True)
class TimeSteps:
    """An input as rows [batch * steps, width], in the order of the file."""

    call: Call
    position: int
    backward: bool = False

    @property
    def time_axis(self) -> int:
        return 0 if self.call.option("TimeMajor") else 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Batch, time steps and elements of an input; a matrix is one step."""
        shape = self.call.importer.shape(self.call.operand(self.position))
        if len(shape) == 2:
            return shape[0], 1, shape[1]
        if len(shape) != 3:
            raise self.call.refuse(f"expected an input of 2 or 3 dimensions, got {list(shape)}")
        batch, steps = shape[:2][::-1] if self.time_axis == 0 else shape[:2]
        return batch, steps, shape[2]

    def rows(self) -> Tensor:
        batch, steps, width = self.shape
        return self.call.reshape(self.call.tensor(self.position), (batch * steps, width))

    def weighted(self, positions: Sequence[int]) -> Tensor:
        """All rows times the weights of gates, [batch * steps, gates * units]."""
        return product(self.call, self.rows(), gate_weights(self.call, positions, self.shape[2]))

    def steps(self) -> Sequence[int]:
        """Time steps in the order in which they are computed."""
        count = self.shape[1]
        return range(count)[::-1] if self.backward else range(count)

    def at(self, rows: Tensor, step: int) -> Tensor:
        """The rows of one time step, [batch, columns]."""
        batch, steps, _ = self.shape
        columns = rows.shape[1]
        order = (steps, batch) if self.time_axis == 0 else (batch, steps)
        whole = self.call.reshape(rows, (*order, columns))
        one = self.call.part(whole, self.time_axis, step, 1)
        return self.call.reshape(one, (batch, columns))

    def joined(self, history: dict[int, Tensor]) -> Tensor:
        """The results of all steps, [batch, columns] each, as the result's sequence."""
        batch, steps, _ = self.shape
        columns = history[0].shape[1]
        if len(self.call.importer.shape(self.call.operand(self.position))) == 2:
            return history[0]
        one = (1, batch, columns) if self.time_axis == 0 else (batch, 1, columns)
        parts = [self.call.reshape(history[step], one) for step in range(steps)]
        return self.call.emit(Concat(self.time_axis), *parts)


def gate_weights(call: Call, positions: Sequence[int], columns: int) -> tuple[Tensor, ...]:
    """Weights of gates side by side, [columns, gates * units]; those of int8 with their scales."""
    found = [matrix(call, position, ("float32", "int8"), columns) for position in positions]
    if any(data.shape != found[0].shape or data.dtype != found[0].dtype for data in found):
        raise call.refuse("expected weights of one type and shape in all gates")
    joined = np.concatenate(found).T
    if joined.dtype == np.float32:
        return (call.value(joined),)
    scales = [np.broadcast_to(call.operand(p).scale, len(found[0])) for p in positions]
    return stored_weight(call, joined, np.concatenate(scales).reshape(1, -1))


def product(call: Call, rows: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """Rows times :func:`gate_weights`."""
    if len(weights) == 1:
        return call.emit(MatMul(), rows, *weights)
    return products(call, rows, (weights[0], weights[1]))


def added(call: Call, a: Tensor, b: Tensor) -> Tensor:
    return call.map(lambda x, y: x + y, a, b)


def vector(call: Call, position: int, units: int, label: str) -> Tensor:
    """A constant of one number a unit; int8 becomes float32."""
    tensor, data = call.operand(position), call.constant(position, label).reshape(-1)
    if data.dtype == np.int8 and tensor.scale.size == 1:
        data = data.astype(np.float32) * tensor.scale[0]
    if data.dtype != np.float32 or data.shape != (units,):
        raise call.refuse(f"expected float32[{units}] as {label}, got {tensor}")
    return call.shared(f"{label}{position}", data)


def finish(call: Call, values: Sequence[Tensor]) -> None:
    """One result a value, or one with all of them side by side."""
    if len(values) > 1 and call.option("MergeOutputs"):
        axis = len(values[0].shape) - 1
        values = [call.emit(Concat(axis), *values)]
    if len(values) != len(call.results):
        raise call.refuse(f"expected {len(values)} results, got {len(call.results)}")
    for value, result in zip(values, call.results, strict=True):
        call.define(value, result=result)


def auxiliary(call: Call, position: int, weights: int) -> tuple[int, bool]:
    """Which operand the backward direction reads, and whether both add an auxiliary input: one
    without weights is what the backward direction reads."""
    present = call.optional(position) is not None
    weighted = present and call.optional(weights) is not None
    return (position if present and not weighted else 0), weighted


# ---- layers --------------------------------------------------------------------------------------


def _rnn_steps(
    call: Call, given: TimeSteps, operands: Sequence[int], more: tuple[int, int] | None = None
) -> Tensor:
    """``operands``: weights of the input and of the state, bias and state; ``more``: an auxiliary
    input and its weights."""
    weights, recurrent, bias, memory = operands
    units, total = call.operand(weights).shape[0], given.weighted([weights])
    if more is not None:
        total = added(call, total, TimeSteps(call, more[0]).weighted([more[1]]))
    total = added(call, total, vector(call, bias, units, "bias"))
    stored = gate_weights(call, [recurrent], units)
    hidden, history = state_of(call, memory, (given.shape[0], units), "float32"), {}
    for step in given.steps():
        made = product(call, hidden, stored)
        hidden = call.map(lambda a, b: activated(call, a + b), given.at(total, step), made)
        history[step] = hidden
    keep(call, memory, hidden)
    return given.joined(history)


def _rnn(call: Call) -> None:
    finish(call, [_rnn_steps(call, TimeSteps(call, 0), (1, 2, 3, 4))])


def _rnn_both(call: Call) -> None:
    if call.operand(1).dtype != "float32":
        raise call.refuse(f"expected weights of float32, got {call.operand(1).dtype}")
    back, weighted = auxiliary(call, 9, 10)
    forward = _rnn_steps(call, TimeSteps(call, 0), (1, 2, 3, 4), (9, 10) if weighted else None)
    backward = _rnn_steps(
        call, TimeSteps(call, back, True), (5, 6, 7, 8), (9, 11) if weighted else None
    )
    finish(call, [forward, backward])


#: Readers by operator and by the first operand's types.
READERS: Rows = {
    "BIDIRECTIONAL_SEQUENCE_RNN": {"float32": _rnn_both},
    "RNN": {"float32": _rnn},
    "UNIDIRECTIONAL_SEQUENCE_RNN": {"float32": _rnn},
}
