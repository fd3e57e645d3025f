"""Random LSTM, GRU and RNN."""

from __future__ import annotations

from typing import Any

from .draw import Draw, Maker, Operand, Sample

#: Gates of a cell, and its activations in a direction.
CELLS = {"LSTM": (4, 3), "GRU": (3, 2), "RNN": (1, 1)}
ACTIVATIONS = ("Sigmoid", "Tanh", "Relu", "Softsign", "HardSigmoid", "Elu", "LeakyRelu")
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def _cell(kind: str) -> Maker:
    def make(d: Draw) -> Sample:
        gates, functions = CELLS[kind]
        direction = d.choice([*DIRECTIONS])
        count, steps, batch = DIRECTIONS[direction], d.integer(1, 5), d.integer(1, 3)
        inputs, hidden = d.integer(1, 5), d.choice((1, 2, 3, 16))
        weights = [d.value((count, gates * hidden, n), scale=0.6) for n in (inputs, hidden)]
        state = (count, batch, hidden)
        optional = [
            d.value((count, 2 * gates * hidden), scale=1),
            d.operand(d.rng.integers(1, steps + 1, batch), "int32"),
            d.value(state, scale=1),
        ]
        if kind == "LSTM":
            optional += [d.value(state, scale=1), d.value((count, 3 * hidden), scale=0.5)]
        given: list[Operand | None] = [o if d.flag() else None for o in optional]
        x = d.value((steps, batch, inputs), scale=1)
        attributes = {"hidden_size": hidden, "direction": direction} | _numbers(d, kind)
        if d.integer(0, 2) == 0:
            attributes["activations"] = [d.choice(ACTIVATIONS) for _ in range(functions * count)]
        return Sample(kind, [x, *weights, *given], attributes, d.integer(1, 2 + (kind == "LSTM")))

    return make


def _numbers(d: Draw, kind: str) -> dict[str, Any]:
    """Attributes that change what a step computes."""
    found: dict[str, Any] = {"clip": d.number(0.3, 2)} if d.integer(0, 3) == 0 else {}
    if kind == "GRU":
        found["linear_before_reset"] = d.integer(0, 1)
    if kind == "LSTM" and d.integer(0, 3) == 0:
        found["input_forget"] = 1
    return found


MAKERS: dict[str, Maker] = {kind: _cell(kind) for kind in CELLS}
