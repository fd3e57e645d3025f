"""Machine code of the host: one call for a whole graph, in memory planned at compile time."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..isa.errors import VdlaError

#: Parameters, arenas and every value in them start at a multiple of this.
ALIGN_BYTES = 64

#: The version of the layout of ``vdla_model``; ``vdla.h`` has the same number.
MODEL_API_VERSION = 1

#: ``vdla_run(inputs, outputs, parameters, arena)``: two arrays of pointers, then two addresses.
ENTRY_NAME = "vdla_run"
#: A ``struct timespec``: seconds and nanoseconds.
STAMP_BYTES = 16
Entry = Callable[..., None]


def align(size_bytes: int) -> int:
    """The next multiple of ``ALIGN_BYTES``."""
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES


def aligned_memory(size_bytes: int) -> np.ndarray:
    """Zeroed uint8 memory that starts at a multiple of ``ALIGN_BYTES``."""
    raw = np.zeros(size_bytes + ALIGN_BYTES, np.uint8)
    first = -raw.ctypes.data % ALIGN_BYTES
    return raw[first : first + size_bytes]


@dataclass(frozen=True)
class TensorType:
    """Name, shape and NumPy dtype name of an input or output, and the dimension along which images
    of a batch lie side by side; None where all images share it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    axis: int | None = 0

    @property
    def type_text(self) -> str:
        """Dtype and shape, such as ``int8[1,8,4,4]``."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def size_bytes(self) -> int:
        """Bytes of a value of this type."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def as_input(value: object, dtype: str) -> np.ndarray:
    """An array as an input of this dtype. NumPy's own float64 is rounded to a narrower float, and
    half types are widened to float32; no other dtype is changed.
    """
    array = np.asarray(value)
    if array.dtype == dtype:
        return array
    if dtype == "float32" and str(array.dtype) in ("float16", "bfloat16"):
        return array.astype(dtype)
    if array.dtype == np.float64 and np.issubdtype(np.dtype(dtype), np.floating):
        return array.astype(dtype)
    return array


def check_array(what: str, array: np.ndarray, shape: tuple[int, ...], dtype: str) -> None:
    """Raise VdlaError unless an array has this shape and dtype."""
    if array.shape != shape or array.dtype != dtype:
        raise VdlaError(
            f"{what} expects {dtype}{list(shape)}, got {array.dtype}{list(array.shape)}"
        )


def check_inputs(graph: str, inputs: Sequence[TensorType], arrays: Sequence[np.ndarray]) -> None:
    """Raise VdlaError unless each input of a graph has an array of its shape and dtype."""
    if len(arrays) != len(inputs):
        raise VdlaError(f"graph {graph}: expected {len(inputs)} inputs, got {len(arrays)}")
    for tensor, array in zip(inputs, arrays, strict=True):
        check_array(f"graph {graph}: input {tensor.name!r}", array, tensor.shape, tensor.dtype)


@dataclass(frozen=True)
class MemoryPlan:
    """How well values share memory, in bytes.

    Attributes
    ----------
    values : how many there are
    sum_bytes : all of them side by side
    planned_bytes : as planned, where values that are never needed at the same time share memory
    bound_bytes : the largest set of values that are needed at the same time; no plan takes less
    """

    values: int
    sum_bytes: int
    planned_bytes: int
    bound_bytes: int


@dataclass(frozen=True, eq=False)
class NativeCode:
    """A graph as one native function ``vdla_run(inputs, outputs, parameters, arena)``.

    Attributes
    ----------
    name : of the graph, for messages
    inputs, outputs : in the order of the call
    parameters : constants, uint8, aligned
    plan : of the arena, which holds all tensors between inputs and outputs
    file : gives the bytes of its shared object, or of its object file
    suffix : ``so`` for a shared object, ``o`` for an object file
    """

    name: str
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    parameters: np.ndarray
    plan: MemoryPlan
    file: Callable[[], bytes]
    suffix: str


@dataclass(frozen=True, eq=False)
class NativeFunction(NativeCode):
    """Native code in this process.

    Attributes
    ----------
    entry : the call; it releases Python's global lock, and may run several times at once
    owner : what keeps the code of ``entry`` in memory
    """

    entry: Entry
    owner: object
    _free_arenas: list[np.ndarray] = field(default_factory=list, init=False, repr=False)

    def run(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """The outputs for the inputs.

        Raises
        ------
        VdlaError
            When the number of arrays, a shape or a dtype is not the function's.
        """
        check_inputs(self.name, self.inputs, arrays)
        inputs = [np.ascontiguousarray(array) for array in arrays]
        try:
            outputs = [np.empty(tensor.shape, tensor.dtype) for tensor in self.outputs]
            arena = self._arena()
        except MemoryError:
            raise VdlaError(
                f"graph {self.name}: expected memory for the outputs and "
                f"{self.plan.planned_bytes} bytes of intermediate tensors, got none; run a smaller "
                "batch, or close other programs"
            ) from None
        self.entry(
            _pointers(inputs), _pointers(outputs), self.parameters.ctypes.data, arena.ctypes.data
        )
        self._note(arena)
        self._free_arenas.append(arena)
        return outputs

    def _note(self, arena: np.ndarray) -> None:
        """Called after each run, before others may use its arena."""

    def _arena(self) -> np.ndarray:
        """The arena of an earlier call, or a new one if other calls use all of them."""
        try:
            return self._free_arenas.pop()  # a check beforehand could be outdated by another thread
        except IndexError:
            return aligned_memory(self.plan.planned_bytes)


@dataclass(frozen=True)
class Call:
    """What one call of a loop program computes: the name of its node and operator, ``ops`` products
    and sums, ``moved_bytes`` of operands and results, and the ``instruction`` that adds products,
    if it has any."""

    name: str
    op: str
    ops: int
    moved_bytes: int
    instruction: str | None


@dataclass(frozen=True, eq=False)
class TimedFunction(NativeFunction):
    """Native code that writes the time to the end of its arena before the first of its ``calls``
    and after each. ``seconds`` has those of each call, a list for each run."""

    calls: tuple[Call, ...]
    seconds: list[list[float]] = field(default_factory=list, init=False, repr=False)

    def _note(self, arena: np.ndarray) -> None:
        stamps = arena[-STAMP_BYTES * (len(self.calls) + 1) :].view(np.int64).reshape(-1, 2)
        self.seconds.append(np.diff(stamps @ np.array([1.0, 1e-9])).tolist())


def _pointers(arrays: Sequence[np.ndarray]) -> ctypes.Array:
    return (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))
