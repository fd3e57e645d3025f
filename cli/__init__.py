"""The ``vdla`` command, one file for each group of commands.

Each command calls the library, then shows the result as a table for people or, with ``--json``, as
JSON for scripts. A command's function stands beside the tables that it prints. What it needs of the
library is imported inside the function, unless ``import vdla`` does so anyway: help and small
commands start at once.

Exit codes: 0 when what was asked for holds, 1 when it does not (a difference, a finding), 2 for bad
usage or bad input, with one line on standard error. A command that returns nothing returns 0.
"""

from .app import main, run_app

__all__ = ["main", "run_app"]
