"""A graph as kernels: a row of launches on one arena of device memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..native import MemoryPlan, TensorType, check_inputs

Size = tuple[int, int, int]
#: Where a tensor is: in the "arena" or among the "parameters", and at which byte.
Place = tuple[str, int]


@dataclass(frozen=True)
class TensorMap:
    """A tensor of which a copy engine brings boxes, as an argument of a kernel: its place, dtype
    and shape; the shape of a box, whose rows are as long as they are swizzled."""

    memory: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    box: tuple[int, ...]


@dataclass(frozen=True)
class KernelCall:
    """A kernel by name, its size in blocks and threads, the places of its arguments, and bytes of
    shared memory that its launch asks for."""

    kernel: str
    grid: Size
    block: Size
    arguments: tuple[Place | TensorMap, ...]
    shared_bytes: int = 0


class Session(Protocol):
    """A device with a program's kernels, its parameters and its arena."""

    def write(self, offset: int, data: np.ndarray) -> None:
        """Copy bytes (uint8) to the arena."""
        ...

    def launch(self, calls: Sequence[KernelCall]) -> None:
        """Run kernels one after the other."""
        ...

    def read(self, offset: int, data: np.ndarray) -> None:
        """Copy bytes of the arena to ``data`` (uint8)."""
        ...


#: Makes a session for a program: it compiles the kernels and copies the parameters.
Open = Callable[["KernelProgram"], Session]


@dataclass(frozen=True, eq=False)
class KernelProgram:
    """A graph as kernels.

    Attributes
    ----------
    name : of the graph, for messages
    device : what runs it: "cuda", "opencl", or "emulated", which is CUDA on the processor
    source : the text of all kernels
    calls : in running order
    inputs, outputs : in the order of :meth:`run`
    places : where each input and output is in the arena or among the parameters, by name
    parameters : constants, uint8, aligned
    plan : of the arena, which holds inputs, outputs and all tensors between them
    open : makes the session that runs it
    """

    name: str
    device: str
    source: str
    calls: tuple[KernelCall, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    places: dict[str, Place]
    parameters: np.ndarray
    plan: MemoryPlan
    open: Open
    _sessions: list[Session] = field(default_factory=list, init=False, repr=False)

    @property
    def suffix(self) -> str:
        """The suffix of a file with the source."""
        return "cl" if self.device == "opencl" else "cu"

    def run(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """The outputs for the inputs.

        Raises
        ------
        VdlaError
            When the number of arrays, a shape or a dtype is not the program's, and where the device
            or its driver is missing.
        """
        check_inputs(self.name, self.inputs, arrays)
        session = self._sessions.pop() if self._sessions else self.open(self)
        outputs = self._run_on(session, arrays)
        self._sessions.append(session)
        return outputs

    def _run_on(self, session: Session, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        for tensor, array in zip(self.inputs, arrays, strict=True):
            if tensor.name in self.places:
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                session.write(self.places[tensor.name][1], data)
        session.launch(self.calls)
        return [self._output(tensor, session) for tensor in self.outputs]

    def _output(self, tensor: TensorType, session: Session) -> np.ndarray:
        if 0 in tensor.shape:
            return np.empty(tensor.shape, tensor.dtype)
        memory, offset = self.places[tensor.name]
        data = np.empty(tensor.size_bytes, np.uint8)
        if memory == "arena":
            session.read(offset, data)
        else:
            data[...] = self.parameters[offset : offset + data.size]
        return data.view(tensor.dtype).reshape(tensor.shape)
