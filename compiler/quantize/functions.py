"""Functions that a model computes in steps: ``x * sigmoid(x)``, GELU by the error function.

On integers a function of one tensor is a table, however many operators compute it. So nothing
between them is quantised.
"""

from __future__ import annotations

from collections.abc import Callable

from .draft import Draft, operands

#: Operators that compute every element from those in the same place, beside the functions of one
#: value that the plan names.
STEPS = {"Add", "Div", "Exp", "Log", "Max", "Min", "Mul", "Pow", "Reciprocal", "Sqrt", "Sub"}


def functions(draft: Draft, is_step: Callable[[int], bool]) -> list[list[int]]:
    """The positions of the nodes of each function of one tensor, in order.

    Parameters
    ----------
    draft : the model
    is_step : whether the node at a position may be part of a function; its operands are looked at
        here
    """
    cut: set[str] = set()
    while True:
        sources = _sources(draft, is_step, cut)
        ends, more = _ends(draft, sources)
        if not more:
            break
        cut |= more
    found: dict[int, list[int]] = {}
    for place in sorted(ends):
        found.setdefault(ends[place], []).append(place)
    return [*found.values()]


def _sources(draft: Draft, is_step: Callable[[int], bool], cut: set[str]) -> dict[int, str]:
    """By the position of each step, the tensor that it computes a function of; a tensor of ``cut``
    counts as one that no step computes."""
    sources: dict[int, str] = {}
    known: dict[str, str] = {}
    for place, node in enumerate(draft.nodes):
        if not is_step(place):
            continue
        data = {name for name in operands(node) if name not in draft.constants}
        numbers = all(draft.constants[n].size == 1 for n in operands(node) if n not in data)
        shape = draft.shapes.get(node.output[0])
        alike = shape is not None and all(draft.shapes.get(name) == shape for name in data)
        found = {known.get(name, name) for name in data}
        if numbers and alike and len(found) == 1:
            (sources[place],) = found
            if node.output[0] not in cut:
                known[node.output[0]] = sources[place]
    return sources


def _ends(draft: Draft, sources: dict[int, str]) -> tuple[dict[int, int], set[str]]:
    """By the position of each step, that of the last step of its function; and the results of steps
    that more than one function reads, or others, too."""
    readers: dict[str, list[int]] = {}
    for place, node in enumerate(draft.nodes):
        for name in node.input:
            readers.setdefault(name, []).append(place)
    ends: dict[int, int] = {}
    several: set[str] = set()
    for place in sorted(sources, reverse=True):
        name = draft.nodes[place].output[0]
        read = readers.get(name, ())
        inside = {ends[p] for p in read if sources.get(p) == sources[place]}
        outside = name in draft.outputs or any(sources.get(p) != sources[place] for p in read)
        ends[place] = place if outside or len(inside) != 1 else next(iter(inside))
        if inside and ends[place] == place:
            several.add(name)
    return ends, several
