"""A model of one operator while it is drawn, and TensorFlow Lite Micro, which runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..tflite_builder import TfliteBuilder

ARENA_BYTES = 1 << 22
Quant = tuple[float, int]
#: Bounds of the integers that are drawn where a row does not say others.
RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767),
          "int32": (-1000, 1000), "int64": (-1000, 1000),
          "uint32": (0, 1000), "uint64": (0, 1000)}  # fmt: skip
QUANTISED = ("int8", "uint8", "int16")


@dataclass(frozen=True)
class Case:
    """A model's file, inputs, and the number of its outputs. ``later`` are the inputs of further
    runs, which begin with the state that the run before them left."""

    data: bytes
    inputs: list[np.ndarray]
    outputs: int = 1
    later: list[list[np.ndarray]] = field(default_factory=list)


@dataclass
class Draft:
    """The model while a row of the table draws it; ``dtype`` is the type of its activations."""

    rng: np.random.Generator
    dtype: str
    builder: TfliteBuilder = field(default_factory=TfliteBuilder)
    inputs: list[int] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    #: How many times the model runs.
    runs: int = 1
    later: list[list[np.ndarray]] = field(default_factory=list)

    def size(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``."""
        return int(self.rng.integers(low, high + 1))

    def chance(self) -> bool:
        return bool(self.rng.integers(2))

    def shape(self, rank: int | None = None, most: int = 6) -> tuple[int, ...]:
        rank = self.size(1, 4) if rank is None else rank
        return tuple(self.size(1, most) for _ in range(rank))

    def elements(self, rank: int | None = None) -> tuple[int, ...]:
        """A shape of up to 3,000 elements: the last bit of a factor shows in few of them."""
        rank = self.size(1, 4) if rank is None else rank
        return self.shape(rank, (0, 3000, 54, 14, 7)[rank])

    def quant(self, dtype: str | None = None) -> Quant | None:
        """A random scale and zero point, or None for a type that has none."""
        match dtype or self.dtype:
            case "int8":
                return float(np.exp(self.rng.uniform(-5, -1))), self.size(-128, 127)
            case "uint8":
                return float(np.exp(self.rng.uniform(-5, -1))), self.size(0, 255)
            case "int16":
                return float(np.exp(self.rng.uniform(-10, -6))), 0
        return None

    def draw(self, shape: Sequence[int], dtype: str, low: float, high: float) -> np.ndarray:
        """Random values; of floats and plain integers from ``low`` to ``high``."""
        if dtype == "bool":
            return self.rng.integers(0, 2, shape).astype(np.bool_)
        if dtype == "float32":
            return self.rng.uniform(low, high, shape).astype(np.float32)
        return self.rng.integers(int(low), int(high) + 1, shape).astype(dtype)

    def x(
        self,
        shape: Sequence[int],
        dtype: str | None = None,
        quant: Quant | None = None,
        low: float | None = None,
        high: float | None = None,
        values: np.ndarray | None = None,
    ) -> int:
        """An input of the model."""
        dtype = dtype or self.dtype
        if quant is None:
            quant = self.quant(dtype)
        span = RANGES.get(dtype, (-4.0, 4.0))
        low, high = (span[0] if low is None else low), (span[1] if high is None else high)
        given = self.draw(shape, dtype, low, high) if values is None else values
        for run in range(self.runs - 1):
            self.later += [[]] * (run == len(self.later))
            again = self.draw(shape, dtype, low, high) if values is None else values
            self.later[run] = [*self.later[run], again]
        index = self.tensor(shape, dtype, quant)
        self.inputs.append(index)
        self.values.append(given)
        return index

    def tensor(
        self, shape: Sequence[int], dtype: str | None = None, quant: Quant | None = None
    ) -> int:
        """A tensor that an operator makes."""
        given = {} if quant is None else {"scale": [quant[0]], "zero": [quant[1]]}
        return self.builder.tensor(shape, dtype or self.dtype, **given)

    def y(self, shape: Sequence[int], dtype: str | None = None, quant: Quant | None = None) -> int:
        """A result, with a random scale unless one is given."""
        return self.tensor(shape, dtype, self.quant(dtype) if quant is None else quant)

    def constant(self, values: object, dtype: str = "int32", quant: Quant | None = None) -> int:
        data = np.asarray(values, dtype)
        given = {} if quant is None else {"scale": [quant[0]], "zero": [quant[1]]}
        return self.builder.tensor(data.shape, dtype, data=data, **given)

    def case(
        self,
        kind: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        table: str = "",
        **options: float,
    ) -> Case:
        """The finished model."""
        self.builder.operator(kind, inputs, outputs, table, **options)
        data = self.builder.file(self.inputs, list(outputs))
        return Case(data, self.values, len(outputs), self.later)


#: A row's function, which draws a model of one operator.
Maker = Callable[[Draft], Case]


class Refused(Exception):
    """TensorFlow Lite Micro does not run a model."""


def micro(case: Case) -> list[np.ndarray]:
    """What TensorFlow Lite Micro computes, the outputs of all runs one after the other.

    Raises
    ------
    Refused
        When it does not run the model.
    """
    # There are packages for Linux on x86-64 only; those who only draw models need none.
    from tflite_micro.python.tflite_micro import runtime

    try:
        interpreter = runtime.Interpreter.from_bytes(case.data, arena_size=ARENA_BYTES)
        found = []
        for inputs in (case.inputs, *case.later):
            for index, value in enumerate(inputs):
                interpreter.set_input(value, index)
            interpreter.invoke()
            found += [interpreter.get_output(index).copy() for index in range(case.outputs)]
        return found
    except (RuntimeError, ValueError) as error:
        raise Refused(str(error)) from None
