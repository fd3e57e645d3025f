"""A model whose inputs may have several shapes: compiled when they come, and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .batches import open_sizes
from .build import CompiledModel
from .frontends.sizes import Sizes

Shapes = tuple[tuple[int, ...], ...]
#: Combinations of shapes that are kept; each holds the weights as its code reads them.
MOST_KEPT = 8


class KeptShapes:
    """What was compiled of a model, by the shapes of its inputs.

    Attributes
    ----------
    first : the model as it was compiled for ``sizes``, before any input came
    """

    def __init__(self, compile_for: Callable[[Sizes], CompiledModel], sizes: Sizes) -> None:
        self._compile_for = compile_for
        self.first = compile_for(sizes)
        given = {s for name in sizes.shapes for s in self.first.graph.symbols.get(name, ())}
        fixed = {s: n for s, n in open_sizes(self.first.graph).items() if s in given}
        self._sizes = replace(sizes, shapes={}, dims={**sizes.dims, **fixed})
        self._kept = {_shapes(self.first): self.first}

    def compiled_for(self, shapes: Sequence[tuple[int, ...]]) -> CompiledModel | None:
        """The model for inputs of these shapes; None where they are not sizes of what the model
        leaves open.

        Raises
        ------
        VdlaError
            For sizes that the model, or what was said of it, does not allow.
        """
        key = tuple(map(tuple, shapes))
        if key not in self._kept:
            symbols = self.first.graph.symbols
            named = zip(self.first.inputs, key, strict=True)
            given = {t.name: shape for t, shape in named if t.name in symbols}
            if not given or not all(_fits(s, symbols[name]) for name, s in given.items()):
                return None
            self._kept[key] = self._compile_for(replace(self._sizes, shapes=given))
        found = self._kept[key] = self._kept.pop(key)  # the last one
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return found


def _fits(shape: tuple[int, ...], sizes: tuple[int | str, ...]) -> bool:
    """Whether a shape has the sizes that the model says, and something of those it leaves open."""
    both = zip(shape, sizes, strict=False)
    return len(shape) == len(sizes) and all(n == s or (n and isinstance(s, str)) for n, s in both)


def _shapes(compiled: CompiledModel) -> Shapes:
    return tuple(tensor.shape for tensor in compiled.inputs)
