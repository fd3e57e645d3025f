"""Functions of numbers and arrays that run as machine code.

Analyses of programs visit millions of entries, one after the other. They are written as loops in a
small part of Python: numbers, arrays, ``for`` over a ``range``, ``while``, ``if``. A compiler for
that part, ``runtime/machine_code.py``, is handed in by the package, because the specification
imports none. Without it the functions run as Python: slower, with the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # so that ``import vdla`` stays instant
    import numpy as np

#: Types of parameters, besides ``int`` and ``float``: int64 [n], int32 [n], int64 [n, m] and
#: float64 [n].
Ints: TypeAlias = "np.ndarray"
Shorts: TypeAlias = "np.ndarray"
Table: TypeAlias = "np.ndarray"
Floats: TypeAlias = "np.ndarray"

#: Makes machine code of a function: what to call with the same arguments.
Compiler = Callable[["Native"], Callable[..., Any]]
_compiler: list[Compiler] = []


def use_compiler(compiler: Compiler) -> None:
    """Run native functions as the machine code that ``compiler`` makes."""
    _compiler[:] = [compiler]


class Native:
    """A function that is compiled when it is first called. Its annotations are types of this
    module, ``int`` or ``float``. It may call other native functions, and read numbers of its
    module.
    """

    __name__: str
    __wrapped__: Any

    def __init__(self, function: Callable[..., Any]):
        update_wrapper(self, function)
        self._code = self.__wrapped__.__code__
        self._run: Callable[..., Any] | None = None

    @property
    def is_as_written(self) -> bool:
        """Whether the function still has the code of its source; a test may have changed it."""
        return self.__wrapped__.__code__ is self._code and all(
            other.is_as_written for other in self.callees
        )

    @property
    def callees(self) -> list[Native]:
        """The native functions that it calls."""
        found = (self.__wrapped__.__globals__.get(name) for name in self._code.co_names)
        return [value for value in found if isinstance(value, Native)]

    def __call__(self, *args: Any) -> Any:
        if not _compiler or not self.is_as_written:
            return self.__wrapped__(*args)
        if self._run is None:
            self._run = _compiler[0](self)
        return self._run(*args)


def native(function: Callable[..., Any]) -> Native:
    """Let a function run as machine code."""
    return Native(function)
