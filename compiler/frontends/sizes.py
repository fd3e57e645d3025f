"""Sizes of inputs that a model leaves open, and values of inputs: what its user says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ...isa.errors import VdlaError

#: A size of an input in a model: a number, the name of an open one, or None without a name.
Declared: TypeAlias = "Sequence[int | str | None]"
#: The size of an open dimension, or the smallest and the largest.
Range: TypeAlias = "int | tuple[int, int]"


@dataclass(frozen=True)
class Sizes:
    """What is known of the inputs before a model is read.

    Attributes
    ----------
    batch : the size of open first dimensions that nothing else is said of
    shapes : of inputs, by name
    dims : sizes of open dimensions, by name; one without a name, dimension 1 of input ``x``, is
        ``x.1``. A graph is made for the largest size of a range.
    values : of inputs, by name, that are constants of the graph
    """

    batch: int = 1
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dims: Mapping[str, Range] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.batch) is not int or self.batch < 1:
            raise VdlaError(f"expected a batch of at least 1, got {self.batch!r}")
        for name, shape in self.shapes.items():
            if any(not isinstance(n, (int, np.integer)) or n < 0 for n in shape):
                raise VdlaError(
                    f"shapes: expected sizes of at least 0 for {name!r}, got {[*shape]!r}"
                )
        for name, size in self.dims.items():
            low, high = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
            if type(low) is not int or type(high) is not int or not 1 <= low <= high:
                raise VdlaError(
                    f"dims: expected a size of at least 1 for {name!r}, or the smallest and the"
                    f" largest, got {size!r}"
                )

    def named(self, declared: Mapping[str, Declared]) -> dict[str, tuple[int | str, ...]]:
        """The inputs that have open dimensions: their sizes, with a name for each open one."""
        found = {
            name: tuple(size_name(name, axis, size) for axis, size in enumerate(sizes))
            for name, sizes in declared.items()
        }
        return {name: sizes for name, sizes in found.items() if any(map(_is_open, sizes))}

    def resolve(
        self, declared: Mapping[str, Declared], guesses: Mapping[str, int] | None = None
    ) -> dict[str, tuple[int, ...]]:
        """The shapes of all inputs, from what the model declares of them. ``guesses`` are sizes of
        open dimensions, by name, that nothing else decides.

        Raises
        ------
        VdlaError
            For an open dimension whose size nothing decides, for a name that the model lacks, and
            for sizes that contradict it or each other.
        """
        named = self.named(declared)
        everywhere = {size for sizes in named.values() for size in sizes if isinstance(size, str)}
        _expect_names("shapes", self.shapes, declared, "inputs")
        _expect_names("dims", self.dims, everywhere, "open dimensions")
        known: dict[str, int] = {}
        for name, shape in self.shapes.items():
            sizes = named.get(name, tuple(declared[name]))
            fixed = all(_is_open(s) or s == n for s, n in zip(sizes, shape, strict=False))
            if len(sizes) != len(shape) or not fixed:
                raise VdlaError(
                    f"input {name!r}: expected a shape like {_text(sizes)}, got {[*shape]}"
                )
            for size, given in zip(sizes, shape, strict=True):
                if isinstance(size, str):
                    self._bind(known, name, size, int(given))
        for name, size in self.dims.items():
            known.setdefault(name, size if isinstance(size, int) else size[1])
        for sizes in named.values():
            if isinstance(sizes[0], str):
                known.setdefault(sizes[0], self.batch)
        known = {**(guesses or {}), **known}
        for name, sizes in named.items():
            missing = [s for s in sizes if isinstance(s, str) and s not in known]
            if missing:
                options = " ".join(f"--dim {s}=N" for s in dict.fromkeys(missing))
                raise VdlaError(
                    f"input {name!r}: expected sizes of its open dimensions, got {_text(sizes)};"
                    f" give them with {options} or --shape {name}="
                    f"{'x'.join('N' if isinstance(s, str) else str(s) for s in sizes)}"
                    " (in Python dims= or shapes=)"
                )
        return {
            name: tuple(known[s] if isinstance(s, str) else s for s in named.get(name, sizes))  # type: ignore[misc]
            for name, sizes in declared.items()
        }

    def _bind(self, known: dict[str, int], name: str, size: str, given: int) -> None:
        """Note the size that a shape gives an open dimension."""
        low, high = _range(self.dims.get(size, (0, given)))
        if not low <= given <= high:
            wanted = f"{low}" if low == high else f"{low} to {high}"
            raise VdlaError(
                f"input {name!r}: expected {wanted} for dimension {size!r}, got {given}"
            )
        if known.setdefault(size, given) != given:
            raise VdlaError(
                f"input {name!r}: expected {known[size]} for dimension {size!r}, as other inputs"
                f" have it, got {given}"
            )

    def check_values(self, names: Sequence[str]) -> None:
        """Raise VdlaError for a value of an input that the model lacks."""
        _expect_names("values", self.values, names, "inputs")

    def value(self, name: str, dtype: str, declared: Declared) -> np.ndarray:
        """The value of an input, as an array of its type.

        Raises
        ------
        VdlaError
            When it is of another shape, or not exactly one of this dtype.
        """
        array = np.asarray(self.values[name], order="C")
        number = array.size == 1 and all(size in (1, None) for size in declared)
        shape = (1,) * len(declared) if number else array.shape
        fits = len(shape) == len(declared) and all(
            n == s or not isinstance(s, int) for n, s in zip(shape, declared, strict=True)
        )
        if fits and array.dtype.kind in "biuf":
            value = array.reshape(shape).astype(dtype, copy=False)
            if np.dtype(dtype).kind == "f" or np.array_equal(value, array.reshape(shape)):
                return value
        raise VdlaError(
            f"values: input {name!r} expects {dtype}{_text(declared) if len(declared) else ''}, got"
            f" {array.dtype}{[*array.shape]}" + (f" {array}" if array.size == 1 else "")
        )


#: Nothing is known but that one image is computed at once.
ONE = Sizes()


def size_name(name: str, axis: int, size: int | str | None) -> int | str:
    """A size of an input, or the name of an open one, which callers give."""
    return f"{name}.{axis}" if size is None else size


def _is_open(size: int | str | None) -> bool:
    return not isinstance(size, int)


def _range(size: Range) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _text(sizes: Declared) -> str:
    return f"[{', '.join('?' if s is None else str(s) for s in sizes)}]"


def _expect_names(what: str, given: Mapping[str, object], known: object, kind: str) -> None:
    for name in given:
        if name not in known:  # type: ignore[operator]
            names = ", ".join(sorted(known)) or "none"  # type: ignore[call-overload]
            raise VdlaError(f"{what}: expected {kind} of the model ({names}), got {name!r}")
