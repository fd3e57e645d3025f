"""Random models of one operator, and what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors
from vdla.compiler.graph.ir import DTYPES

OPSET = 21
MICROSOFT = "com.microsoft"
#: Values that floats are drawn from half of the time, so that some are equal or exactly between
#: integers: multiples of this.
GRID = 0.5


@dataclass(frozen=True)
class Operand:
    """A value that a node reads: a constant of the model, or one of its inputs."""

    array: np.ndarray
    is_constant: bool


@dataclass(frozen=True)
class Sample:
    """A node with its operands; None for those that are absent.

    Attributes
    ----------
    outputs : how many results it has
    steps : by how much a rounded integer result may differ
    """

    kind: str
    operands: Sequence[Operand | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = OPSET
    domain: str = ""
    steps: int = 0

    def model(self) -> onnx.ModelProto:
        """The node as a model, whose inputs are the operands that are no constants."""
        names = [f"x{i}" if operand else "" for i, operand in enumerate(self.operands)]
        made = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(
            self.kind, names, made, "node", domain=self.domain, **self.attributes
        )
        given = [(n, o) for n, o in zip(names, self.operands, strict=True) if o is not None]
        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(o.array.dtype), o.array.shape
            )
            for name, o in given if not o.is_constant
        ]  # fmt: skip
        constants = [numpy_helper.from_array(o.array, name) for name, o in given if o.is_constant]
        outputs = [onnx.ValueInfoProto(name=name) for name in made]
        graph = helper.make_graph([node], "one", inputs, outputs, constants)
        imports = [helper.make_opsetid("", self.opset)]
        imports += [helper.make_opsetid(self.domain, 1)] if self.domain else []
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def feeds(self) -> dict[str, np.ndarray]:
        """The values of the model's inputs, by name."""
        return {f"x{i}": o.array for i, o in enumerate(self.operands) if o and not o.is_constant}


class Draw:
    """Random choices; the same ones for the same name. In three of four cases the model is
    ``trained``: weights, scales and bounds are constants."""

    def __init__(self, name: str):
        self.random = Random(name)
        self.trained = self.random.random() < 0.75
        self.rng = np.random.default_rng(self.random.getrandbits(64))

    def integer(self, low: int, high: int) -> int:
        """From ``low`` to ``high``, both included."""
        return self.random.randint(low, high)

    def choice(self, options: Sequence[Any]) -> Any:
        return self.random.choice(list(options))

    def flag(self) -> bool:
        return self.random.random() < 0.5

    def dtype(self, kind: str, operand: int = 0, opset: int = OPSET) -> str:
        """A dtype that an operator's definition allows. Half of the time it is float32, for which
        ONNX Runtime has a kernel of almost every operator."""
        found = dtypes_of(kind, operand, opset)
        return "float32" if "float32" in found and self.flag() else self.choice(found)

    def number(self, low: float, high: float) -> float:
        """A number that float32 holds exactly."""
        return float(np.float32(self.random.uniform(low, high)))

    def shape(self, low: int = 0, high: int = 4, most: int = 6) -> tuple[int, ...]:
        """Of rank ``low`` to ``high``, with sizes 1 to ``most``."""
        return tuple(self.integer(1, most) for _ in range(self.integer(low, high)))

    def axis(self, rank: int) -> int:
        """One of this many axes, half of the time counted from the end."""
        return self.integer(-rank, rank - 1)

    def array(self, shape: Sequence[int], dtype: str = "float32", scale: float = 4) -> np.ndarray:
        """Random elements: floats within ``scale`` of 0; small integers, or any."""
        shape, kind = tuple(shape), DTYPES[dtype]
        if dtype == "bool":
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype.startswith("float"):
            values = self.rng.uniform(-scale, scale, shape)
            return (np.round(values / GRID) * GRID if self.flag() else values).astype(kind)
        bounds = np.iinfo(kind)
        if self.flag() or dtype[-2:] in ("32", "64"):
            return self.rng.integers(max(bounds.min, -9), 10, shape).astype(kind)
        return self.rng.integers(bounds.min, bounds.max + 1, shape).astype(kind)

    def operand(self, array: Any, dtype: str | None = None) -> Operand:
        """An input of the model, or one time in four a constant."""
        return Operand(np.asarray(array, dtype), self.integer(0, 3) == 0)

    def weight(self, array: Any, dtype: str | None = None) -> Operand:
        """A constant of a trained model, else any operand."""
        return constant(array, dtype) if self.trained else self.operand(array, dtype)

    def value(self, shape: Sequence[int], dtype: str = "float32", scale: float = 4) -> Operand:
        """Random elements, as an input or a constant."""
        return self.operand(self.array(shape, dtype, scale))

    def part_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to another."""
        sizes = [n if self.integer(0, 2) else 1 for n in shape]
        return tuple(sizes[self.integer(0, len(sizes)) :] if self.flag() else sizes)


Maker = Callable[[Draw], Sample]


def constant(array: Any, dtype: str | None = "int64") -> Operand:
    """A constant of the model."""
    return Operand(np.asarray(array, dtype), is_constant=True)


def dtypes_of(kind: str, operand: int = 0, opset: int = OPSET) -> list[str]:
    """The dtypes that an operator's definition allows for an operand, of those that we know."""
    schema = onnx.defs.get_schema(kind, opset)
    letter = schema.inputs[operand].type_str
    allowed = next(
        (c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == letter),
        [letter],
    )
    names = {"float": "float32", "double": "float64"}
    found = [t.removeprefix("tensor(").removesuffix(")") for t in allowed if "tensor(" in t[:7]]
    return [names.get(t, t) for t in found if names.get(t, t) in DTYPES]


def type_number(dtype: str) -> int:
    """ONNX's number of a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


#: How ONNX Runtime says that a model is wrong.
REFUSALS = (
    ort_errors.Fail, ort_errors.InvalidArgument, ort_errors.InvalidGraph,
    ort_errors.RuntimeException, ort_errors.EPFail,
)  # fmt: skip


class Refused(Exception):
    """ONNX Runtime says that the model is wrong."""


def results(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> tuple[list[np.ndarray], str]:
    """What a model computes and who says so: ONNX Runtime, or ONNX's reference evaluator where
    ONNX Runtime has no kernel for the dtypes.

    Raises
    ------
    Refused
        When ONNX Runtime says that the model is wrong.
    """
    try:
        return run_session(model, feeds), "ONNX Runtime"
    except ort_errors.NotImplemented:
        pass
    except REFUSALS as error:
        raise Refused(str(error)) from error
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, feeds)], "evaluator"
    except Exception as error:
        raise Refused(str(error)) from error


def run_session(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes, on one thread."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(a) for a in session.run(None, feeds)]
