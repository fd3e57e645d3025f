"""What a model keeps from one run to the next: variables of TensorFlow Lite while they are read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from ....isa.errors import VdlaError
from ...graph.arithmetic.requant import OFFSET
from ...graph.ir import Tensor
from ...graph.ops.base import Op
from ...graph.ops.movement import Identity
from .file import FlatTensor

#: A variable: the number of a subgraph and a tensor's index, or what an operator keeps there, or a
#: container and a shared name.
Key = tuple[int | str, int | str]


@dataclass
class Variables:
    """All variables of a model.

    Attributes
    ----------
    current : the graph's tensor that holds the value so far, in the layout ``plain``
    inputs : the graph's input that holds the value before a run, of those that are read before
        they are assigned
    initial : the value before the first run, if the model sets one, as the graph stores it
    """

    current: dict[Key, str] = field(default_factory=dict)
    inputs: dict[Key, str] = field(default_factory=dict)
    initial: dict[Key, np.ndarray] = field(default_factory=dict)

    def read(self, tensors: dict[str, Tensor], key: Key, initial: np.ndarray) -> Tensor:
        """The graph's tensor with the value of a variable, which is ``initial`` before the first
        run unless the model sets another value."""
        if key not in self.current:
            self.current[key] = self.inputs.get(key) or self._begin(tensors, key, initial)
        return tensors[self.current[key]]

    def _begin(self, tensors: dict[str, Tensor], key: Key, initial: np.ndarray) -> str:
        name = f"state{len(self.inputs)}"
        while name in tensors:
            name += "'"
        value = self.initial.setdefault(key, initial)
        tensors[name] = Tensor(name, value.shape, str(value.dtype))
        self.inputs[key] = name
        return name

    def hold(self, names: Collection[str]) -> bool:
        """Whether the value of a variable is one of these tensors."""
        return any(name in names for name in self.current.values())

    def finish(
        self, tensors: dict[str, Tensor], emit: Callable[[str, Op, tuple[str, ...], str], str]
    ) -> tuple[list[str], list[str], tuple[np.ndarray, ...]]:
        """The names of the states as inputs and as outputs of the graph, and their initial values.
        A variable that is never assigned becomes a constant. ``emit`` appends a node.
        """
        before, after, initial = [], [], []
        for key, name in self.inputs.items():
            value = self.initial[key]
            if self.current[key] == name:
                tensors[name] = Tensor.constant(name, value)
                continue
            made = f"{name}.next"
            before.append(name)
            after.append(emit(made, Identity(), (self.current[key],), made))
            initial.append(value)
        return before, after, tuple(initial)


def initial_value(like: FlatTensor) -> np.ndarray:
    """The value of a variable before the first run: the zero point of int8, else bytes of 0."""
    if like.dtype == "resource":
        raise VdlaError(f"{like}: the handle of a variable has no value")
    if like.dtype == "uint8":
        return np.full(like.shape, -OFFSET, np.int8)
    zero = int(like.zero_point[0]) if like.dtype == "int8" and like.zero_point.size else 0
    return np.full(like.shape, zero, like.dtype)
