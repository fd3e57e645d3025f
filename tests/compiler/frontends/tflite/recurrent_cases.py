"""Recurrent layers of float32 in all their forms, always the same ones by number."""

from __future__ import annotations

import numpy as np
import tflite

from .tflite_builder import TfliteBuilder

RUNS = 2
KINDS = (
    "RNN", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN", "LSTM", "BASIC",
    "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM",
)  # fmt: skip
#: Kinds whose weights are always float32.
_REAL = ("BASIC", "BIDIRECTIONAL_SEQUENCE_RNN")
_CODES = tflite.ActivationFunctionType


class Recurrent:
    """One case while it is built; ``hybrid`` ones have weights of int8."""

    def __init__(self, number: int) -> None:
        self.rng, self.b = np.random.default_rng(number), TfliteBuilder()
        self.kind = KINDS[number % len(KINDS)]
        self.hybrid = self.kind not in _REAL and number // len(KINDS) % 3 == 2
        self.batch, self.steps, self.width, self.units = (
            int(self.rng.integers(1, n)) for n in (4, 5, 7, 6)
        )
        self.major, self.merged = bool(self.rng.integers(2)), bool(self.rng.integers(2))

    def floats(self, *shape: int) -> int:
        data = self.rng.normal(size=shape).astype(np.float32) * np.float32(0.7)
        return self.b.tensor(shape, "float32", data=data)

    def matrix(self, *shape: int) -> int:
        if not self.hybrid:
            return self.floats(*shape)
        data = self.rng.integers(-127, 128, shape).astype(np.int8)
        return self.b.tensor(shape, "int8", [float(self.rng.uniform(0.002, 0.01))], [0], data=data)

    def state(self, units: int) -> int:
        return self.b.tensor((self.batch, units), "float32", variable=True)

    def sequence(self, width: int) -> int:
        order = (self.steps, self.batch) if self.major else (self.batch, self.steps)
        return self.b.tensor((*order, width), "float32")

    def options(self, **more: float) -> dict[str, float]:
        activations = (_CODES.TANH, _CODES.RELU) if "RNN" in self.kind else (_CODES.TANH,)
        chosen = int(self.rng.choice(activations))
        asymmetric = {"AsymmetricQuantizeInputs": bool(self.rng.integers(2))} if self.hybrid else {}
        return {"FusedActivationFunction": chosen, **asymmetric, **more}

    def emit(self, inputs: list[int], outputs: list[int], table: str, **more: float) -> None:
        kind = "LSTM" if self.kind == "BASIC" else self.kind
        self.b.operator(kind, inputs, outputs, table, **self.options(**more))

    # ---- RNN ----

    def rnn(self) -> tuple[int, list[int]]:
        parts = [self.matrix(self.units, self.width), self.matrix(self.units, self.units)]
        parts += [self.floats(self.units), self.state(self.units)]
        if self.kind == "RNN":
            x = self.b.tensor((self.batch, self.width), "float32")
            y = self.b.tensor((self.batch, self.units), "float32")
            self.emit([x, *parts], [y], "RNNOptions")
            return x, [y]
        x, y = self.sequence(self.width), self.sequence(self.units)
        self.emit([x, *parts], [y], "SequenceRNNOptions", TimeMajor=self.major)
        return x, [y]

    def rnn_both(self) -> tuple[int, list[int]]:
        x, parts, sizes = self.sequence(self.width), [], [self.units, self.units + 1]
        for units in sizes:
            parts += [self.matrix(units, self.width), self.matrix(units, units)]
            parts += [self.floats(units), self.state(units)]
        y = [self.sequence(sum(sizes))] if self.merged else [self.sequence(n) for n in sizes]
        self.emit(
            [x, *parts, -1, -1, -1], y, "BidirectionalSequenceRNNOptions", TimeMajor=self.major,
            MergeOutputs=self.merged,
        )  # fmt: skip
        return x, y

    # ---- LSTM ----

    def gates(self, size: int, coupled: bool, made: int) -> list[int]:
        """Weights, peepholes, biases and projection; ``made`` is the size of a result."""
        rng, units = self.rng, self.units
        projected, peeped = made != units, bool(rng.integers(2))
        found = [self.matrix(units, size) for _ in range(4)]
        found += [self.matrix(units, made) for _ in range(4)]
        found += [self.floats(units) if peeped and not self.hybrid else -1 for _ in range(3)]
        found += [self.floats(units) for _ in range(4)]
        if coupled:
            for place in (0, 4, 8, 11):
                found[place] = -1
        found += [self.matrix(made, units), self.floats(made)] if projected else [-1, -1]
        return found

    def size(self) -> int:
        return int(self.rng.integers(1, 6)) if self.rng.integers(2) else self.units

    def lstm(self) -> tuple[int, list[int]]:
        coupled = bool(self.rng.integers(2))
        made = self.size()
        parts = self.gates(self.width, coupled, made)
        parts += [self.state(made), self.state(self.units)]
        if self.rng.integers(2):
            parts += [-1 if coupled and i == 0 else self.floats(self.units) for i in range(4)]
        bounds = {"CellClip": float(self.rng.choice([0.0, 0.8])),
                  "ProjClip": float(self.rng.choice([0.0, 0.5]))}  # fmt: skip
        if self.kind == "LSTM":
            x = self.b.tensor((self.batch, self.width), "float32")
            y = self.b.tensor((self.batch, made), "float32")
            self.emit([x, *parts], [y], "LSTMOptions", **bounds)
            return x, [y]
        x, y = self.sequence(self.width), self.sequence(made)
        self.emit([x, *parts], [y], "UnidirectionalSequenceLSTMOptions", TimeMajor=self.major,
                  **bounds)  # fmt: skip
        return x, [y]

    def lstm_both(self) -> tuple[int, list[int]]:
        x, parts, states, made = self.sequence(self.width), [], [], self.size()
        for _ in range(2):
            parts += self.gates(self.width, bool(self.rng.integers(2)), made)
            states += [self.state(made), self.state(self.units)]
        y = [self.sequence(2 * made)] if self.merged else [self.sequence(made) for _ in range(2)]
        self.emit(
            [x, *parts, *states, *[-1] * 9], y, "BidirectionalSequenceLSTMOptions",
            TimeMajor=self.major, MergeOutputs=self.merged,
            CellClip=float(self.rng.choice([0.0, 0.8])),
        )  # fmt: skip
        return x, y

    def basic(self) -> tuple[int, list[int]]:
        x, units = self.b.tensor((self.batch, self.width), "float32"), self.units
        hidden, cell = self.state(units), self.state(units)
        parts = [hidden, self.floats(4 * units, self.width + units), self.floats(4 * units), cell]
        y = [self.b.tensor((self.batch, n), "float32")
             for n in (units, units, self.width + units, 4 * units)]  # fmt: skip
        self.emit([x, *parts], y, "LSTMOptions", KernelType=tflite.LSTMKernelType.BASIC)
        return x, y[:1]


def recurrent_case(number: int) -> tuple[bytes, list[np.ndarray]]:
    """A model's file and the inputs of several runs."""
    case = Recurrent(number)
    made = {"RNN": case.rnn, "UNIDIRECTIONAL_SEQUENCE_RNN": case.rnn, "BASIC": case.basic,
            "BIDIRECTIONAL_SEQUENCE_RNN": case.rnn_both, "LSTM": case.lstm,
            "UNIDIRECTIONAL_SEQUENCE_LSTM": case.lstm,
            "BIDIRECTIONAL_SEQUENCE_LSTM": case.lstm_both}  # fmt: skip
    x, outputs = made[case.kind]()
    order = (case.steps, case.batch) if case.major else (case.batch, case.steps)
    flat = case.kind in ("RNN", "LSTM", "BASIC")
    shape = (case.batch, case.width) if flat else (*order, case.width)
    runs = [case.rng.normal(size=shape).astype(np.float32) for _ in range(RUNS)]
    return case.b.file([x], outputs), runs
