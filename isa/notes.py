"""What the instructions of a program and its constants are for, in the words of the model.

They are kept in a program's meta data, under ``names``::

    {"notes": [[layer, stage, tensor], ...],          every note once
     "insns": [index of a note, ...],                 one for each instruction
     "constants": [{"address", "bytes", "name"}, ...]}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any


@dataclass(frozen=True)
class Note:
    """What an instruction is for: the layer, the stage of it that is computed, and the tensor of
    the model that is moved, if one is.
    """

    layer: str
    stage: str
    tensor: str = ""

    def __str__(self) -> str:
        return f"{self.layer}: {self.stage}" + (f", {self.tensor}" if self.tensor else "")


def pack_notes(notes: Sequence[Note]) -> dict[str, Any]:
    """The entries ``notes`` and ``insns`` for one note per instruction."""
    table = list(dict.fromkeys(notes))
    place = {note: index for index, note in enumerate(table)}
    return {
        "notes": [list(astuple(note)) for note in table],
        "insns": [place[note] for note in notes],
    }


def unpack_notes(names: dict[str, Any]) -> list[Note]:
    """The inverse of :func:`pack_notes`."""
    table = [Note(*words) for words in names["notes"]]
    return [table[index] for index in names["insns"]]
