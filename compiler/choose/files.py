"""Knobs from a file: a report of ``vdla run --json``, or a plain mapping."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...isa.errors import VdlaError
from ...isa.text_files import read_text
from .chooser import Given


def load_knobs(source: str | Path | Mapping[str, Any]) -> Given:
    """Knobs by layer, from a report of ``vdla run --json`` or from a mapping of layers to knobs;
    ``source`` is either of these, or the path of its file.

    Raises
    ------
    VdlaError
        For anything else.
    """
    where = "knobs"
    data: Any = source
    if isinstance(source, str | Path):
        where = str(source)
        text = read_text(source)
        try:
            data = json.loads(text)
        except ValueError as error:
            raise VdlaError(f"{where}: expected JSON ({error})") from None
    if isinstance(data, Mapping) and isinstance(data.get("layers"), list):
        rows = [row for row in data["layers"] if isinstance(row, Mapping) and row.get("knobs")]
        data = {str(row.get("name")): row["knobs"] for row in rows}
    if not isinstance(data, Mapping) or not all(isinstance(v, Mapping) for v in data.values()):
        raise VdlaError(
            f"{where}: expected a report of vdla run, or knobs by layer, got {type(data).__name__}"
        )
    for layer, knobs in data.items():
        for name, value in knobs.items():
            if not isinstance(value, int | str):
                raise VdlaError(
                    f"{where}: layer {layer!r}: knob {name}: expected an integer, a word, true or"
                    f" false, got {value!r}"
                )
    return data
