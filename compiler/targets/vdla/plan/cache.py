"""Programs that were compiled before, in the cache folder (``targets/common/cache.py``).

A program and the choices in it depend on the graph with its constants, on which nodes are in the
part, on the machine, on what a person or records say about it, on the templates, and on the
compiler's source. A user's own code, such as a plugin's template, may depend on anything. Where
there is some, nothing is kept and nothing is taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .....isa.additions import added_rows
from .....isa.program import Program
from .....runtime.executable import LayerInfo
from ....choose.chooser import Choice, Chooser
from ....graph.ir import Graph
from ...base import Compiled
from ...common import cache
from .program_plan import ProgramPlan

_PACKAGE = __name__.partition(".")[0]
#: The text of a graph, which has all of its constants, while its parts are compiled.
_texts: WeakKeyDictionary[Graph, str] = WeakKeyDictionary()


class Foreign(Exception):
    """A value of a class that is not the package's."""


def place_of(kind: str, chooser: Chooser, *known: object) -> Path | None:
    """The file for what depends on a chooser's choices and on all else that is ``known``; None
    where a user's own code takes part in it. The ``kind`` begins its name."""
    if added_rows():
        return None
    records = [
        (record.key, record.knobs, record.cost)
        for record in chooser.records.where(target=chooser.target, machine=chooser.machine).trials
    ]
    try:
        return cache.place_of(kind, map(text_of, (chooser.given, chooser.made, records, *known)))
    except Foreign:
        return None


def read(place: Path, chooser: Chooser) -> Compiled | None:
    """The program that was kept, with its layers; the chooser then remembers its choices. None
    where there is none.
    """
    found = cache.read(place)
    if found is None:
        return None
    program = Program.from_bytes(found.data, place)
    chooser.made.update(
        (layer, [Choice(*choice) for choice in made])
        for layer, made in found.head["choices"].items()
    )
    layers = [LayerInfo.from_dict(layer) for layer in found.head["layers"]]
    return Compiled(program, layers)


def keep(place: Path, compiled: Compiled, chooser: Chooser, seconds: float) -> None:
    """Keep a program that took ``seconds`` for :func:`read`."""
    assert isinstance(compiled.step, Program)
    choices = {
        layer: [(dict(choice.knobs), choice.chosen_by, choice.predicted_cycles) for choice in made]
        for layer, made in chooser.made.items()
    }
    head = {"layers": [asdict(layer) for layer in compiled.layers], "choices": choices}
    cache.keep(place, cache.Kept(head, compiled.step.to_bytes()), seconds)


def read_plan(place: Path) -> ProgramPlan | None:
    """The plan of a program that was kept; None where there is none."""
    found = cache.read(place)
    return None if found is None else ProgramPlan(**found.head)


def keep_plan(place: Path, plan: ProgramPlan, seconds: float) -> None:
    """Keep a plan that took ``seconds`` for :func:`read_plan`."""
    cache.keep(place, cache.Kept(asdict(plan), b""), seconds)


def text_of(value: object) -> str:
    """A text that is the same for equal values only. Arrays are digests.

    Raises
    ------
    Foreign
        For a value of a class that is not the package's, such as an operator of a plugin.
    """
    match value:
        case Enum():
            return f"{text_of(type(value))}.{value.name}"
        case None | bool() | int() | float() | str():
            return repr(value)
        case np.ndarray() if not value.dtype.hasobject:
            digest = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
            return f"{value.dtype.str}{value.shape}{digest}"
        case np.generic():
            return text_of(np.asarray(value))
        case tuple() | list():
            return f"[{','.join(map(text_of, value))}]"
        case Mapping():
            return f"{{{','.join(f'{text_of(k)}:{text_of(v)}' for k, v in value.items())}}}"
        case type() if value.__module__.partition(".")[0] == _PACKAGE:
            return f"{value.__module__}.{value.__qualname__}"
        case Graph() if value in _texts:
            return _texts[value]
        case Graph():
            _texts[value] = _text_of_dataclass(value)
            return _texts[value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return _text_of_dataclass(value)
    raise Foreign(repr(type(value)))


def _text_of_dataclass(value: Any) -> str:
    attributes = (text_of(getattr(value, field.name)) for field in fields(value))
    return f"{text_of(type(value))}({','.join(attributes)})"
