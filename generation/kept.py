"""Compiled steps in the cache folder: a second call need not quantise and compile again."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .. import plugins
from ..compiler.choose.records import RECORDS_VARIABLE
from ..isa.errors import VdlaError
from ..module import Module, load
from ..runtime.cache import cache_dir, one_process, source_digest

#: Steps that are kept, two of a model: one of SmolLM2's takes 300 MB.
MOST_KEPT = 6
#: The folders of the package whose source files decide what a step is.
ROOMS = ("generation", "compiler", "isa", "runtime")


def kept_step(made_of: object, target: str, make: Callable[[], Module]) -> Module:
    """The module that ``make`` returns, from the cache folder if it was made before of the same
    things, as ``repr`` tells them, by the same source files. A folder that does not load, such as
    one of another processor, is made again. Where plugins or records take part, which may change
    any choice, nothing is kept and nothing is taken."""
    plugins.load_known()
    if plugins.loaded() or RECORDS_VARIABLE in os.environ:
        return make()
    parts = f"{made_of!r}\0{source_digest(*ROOMS)}"
    place = cache_dir() / f"step_{hashlib.sha256(parts.encode()).hexdigest()[:24]}"
    with one_process(place):
        with suppress(VdlaError, OSError):
            found = load(place, target=target)
            place.touch()
            return found
        module = make()
        with suppress(OSError):  # a cache that cannot be written costs time, nothing else
            shutil.rmtree(place, ignore_errors=True)
            for old in _oldest_first(place.parent)[: 1 - MOST_KEPT]:
                shutil.rmtree(old, ignore_errors=True)
            module.save(place)
        return module


def _oldest_first(folder: Path) -> list[Path]:
    """The steps that are kept, by when they were used last."""
    return sorted(folder.glob("step_*"), key=lambda path: path.stat().st_mtime)
