"""How a bug is planted: a function's code is replaced while the check runs, never a file."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

#: What was found, or None.
Check = Callable[[], str | None]


@dataclass(frozen=True)
class Mutant:
    """One bug.

    Attributes
    ----------
    name : what is wrong
    place : room and block; mutants of the RTL, ``rtl ...``, need a build of their own
    function : where the bug sits
    old, new : the text of the function that is replaced, and by what
    check : what must see it
    caches : functions that keep what the function has made
    """

    name: str
    place: str
    function: Callable[..., Any]
    old: str
    new: str
    check: Check
    caches: tuple[Any, ...] = ()

    @contextmanager
    def plant(self) -> Iterator[None]:
        """The bug is there inside. Callers of the function, wherever they have it from, see it."""
        assert isinstance(self.function, FunctionType)
        true, self.function.__code__ = self.function.__code__, self.code()
        self._forget()
        try:
            yield
        finally:
            self.function.__code__ = true
            self._forget()

    def _forget(self) -> None:
        for cache in self.caches:
            cache.cache_clear()

    def code(self) -> CodeType:
        """The function with the bug; a LookupError where the text is not there exactly once."""
        assert isinstance(self.function, FunctionType)
        source = inspect.getsource(self.function)
        if source.count(self.old) != 1:
            raise LookupError(
                f"{self.name} ({self.place}): expected {self.old!r} once in "
                f"{self.function.__qualname__}, found {source.count(self.old)}; mend the mutant"
            )
        changed = source.replace(self.old, self.new)
        name, free = self.function.__name__, self.function.__code__.co_freevars
        # Methods are indented. What a function has from around it, such as the class that `super()`
        # means, are parameters of a function around it here.
        nested = f"if True:\n{textwrap.indent(changed, ' ')}"
        if free:
            inside = textwrap.indent(nested, " ")
            nested = f"def around({', '.join(free)}):\n{inside}\n return {name}\n"
        flags = annotations.compiler_flag  # of the function's module
        made: dict[str, Any] = {}
        filename = inspect.getsourcefile(self.function) or "<mutant>"
        exec(compile(nested, filename, "exec", flags), self.function.__globals__, made)
        function = made["around"](*free) if free else made[name]
        function = getattr(function, "fget", function)  # of a property
        return inspect.unwrap(getattr(function, "__func__", function)).__code__
