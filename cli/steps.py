"""The steps of a command that has yosys work for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

#: Seconds after which an action's steps are told where there is no terminal.
QUIET_S = 5.0


@contextmanager
def steps_shown(what: str) -> Iterator[Callable[[str], None]]:
    """A function that shows the progress of an action: in a terminal, or as lines where it takes
    long; yosys is ready inside.
    """
    from ..sim.rtl.toolchain import setup_yosys

    console, begun = Console(stderr=True), time.monotonic()
    with console.status(f"{what}: yosys starts") as status:
        setup_yosys()

        def show(text: str) -> None:
            status.update(text)
            if not console.is_terminal and time.monotonic() - begun > QUIET_S:
                print(f"vdla: {text}", file=sys.stderr)

        yield show
