"""The ``vdla`` command, one file for each group of commands.

Each command calls the library, then shows the result as a table for people or, with ``--json``, as
JSON for scripts. A command's function stands beside the tables that it prints. What it needs of the
library is imported inside the function, unless ``import vdla`` does so anyway: help and small
commands start at once.

Exit codes: 0 when what was asked for holds, 1 when it does not (a difference, a finding), 2 for bad
usage or bad input, 130 after Ctrl-C (2 where it also says how to go on); the last two with one line
on standard error. A command that returns nothing returns 0.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from io import TextIOWrapper

#: The exit code after Ctrl-C: 128 and the signal's number, as shells say it.
INTERRUPTED = 130


def main() -> None:
    """Entry point of the ``vdla`` command; never a traceback for the user's mistakes."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed when the command began
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the locale may lack characters
    code = run_app(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said; Python only cleans up
    sys.exit(code)


def run_app(args: list[str]) -> int:
    """Run one command line and return its exit code."""
    # Amaranth's of what was made and is not used any more, as after Ctrl-C
    warnings.filterwarnings("ignore", message=".* created but never used")
    try:
        from . import app  # here, because Ctrl-C may come while it is imported

        code = app.run_app(args)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        print("vdla: interrupted", file=sys.stderr)
    return code
