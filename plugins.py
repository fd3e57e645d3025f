"""Plugins: files of the user's own that add operators, passes, templates, targets, vector operators
or boards.

A plugin is a Python file, or a module that an installed package names as an entry point of the
group ``vdla.plugins``. When it is loaded it registers what it brings, by the functions that stand
beside the package's own tables::

    register_reader(domain, kind, read)    vdla.compiler.frontends.onnx.importer
    register_pass(apply, before)           vdla.compiler.graph.passes
    register_template(kind)                vdla.compiler.targets.registry
    register_target(name, make)            vdla.compiler.targets.registry
    register_vector_op(op)                 vdla.isa.vector_ops
    register_board(board)                  vdla.hw.boards

A plugin is code: load what you trust.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from .isa.additions import Additions, noting
from .isa.errors import VdlaError

#: The group of entry points.
GROUP = "vdla.plugins"
#: The environment variable with the paths of plugins. :func:`load` adds to it, so that processes
#: that a command starts have the same plugins.
VARIABLE = "VDLA_PLUGINS"
#: How the names of modules begin that are plugins' files.
_MODULE = "vdla_plugin_"


@dataclass(frozen=True)
class Plugin:
    """A plugin that was loaded.

    Attributes
    ----------
    name : the file's name, or that of the entry point
    sha256 : of the file
    additions : what it has registered
    """

    name: str
    sha256: str
    additions: Additions


#: By the file's path, or the entry point's name.
_loaded: dict[str, Plugin] = {}


def load(path: str | Path) -> Plugin:
    """Load a plugin. A file that was loaded and has changed is loaded again, and what it registered
    before is taken back.

    Parameters
    ----------
    path : path
        The Python file.

    Raises
    ------
    VdlaError
        For a file that cannot be read or that raises, and for a name that is taken.
    """
    place = Path(path).absolute()
    try:
        source = place.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise VdlaError(f"plugin {path}: expected a Python file: {reason}") from None
    sha256 = hashlib.sha256(source).hexdigest()
    known = _loaded.get(str(place))
    if known is not None and known.sha256 == sha256:
        return known
    if known is not None:
        known.additions.take_back()
        del _loaded[str(place)]
    plugin = Plugin(place.name, sha256, _run(str(path), lambda: _execute(place, source)))
    _loaded[str(place)] = plugin
    paths = [p for p in os.environ.get(VARIABLE, "").split(os.pathsep) if p]
    if str(place) not in paths:
        os.environ[VARIABLE] = os.pathsep.join([*paths, str(place)])
    return plugin


def load_known() -> None:
    """Load the plugins of installed packages and those that ``VDLA_PLUGINS`` names, unless they are
    loaded. Whatever compiles or runs calls this first.

    Raises
    ------
    VdlaError
        As :func:`load`.
    """
    for point in _entry_points():
        if point.name not in _loaded:
            _load_installed(point)
    for path in os.environ.get(VARIABLE, "").split(os.pathsep):
        if path and str(Path(path).absolute()) not in _loaded:
            load(path)


def loaded() -> list[Plugin]:
    """All plugins that are loaded, in order."""
    return list(_loaded.values())


def report() -> list[dict[str, str]]:
    """The plugins that are loaded, for reports: names and hashes."""
    return [{"name": plugin.name, "sha256": plugin.sha256} for plugin in loaded()]


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


def _load_installed(point: EntryPoint) -> None:
    """Import the module of an entry point."""
    title = f"{point.name} of the package {point.dist.name if point.dist else '?'}"
    additions = _run(title, point.load)
    file = getattr(importlib.import_module(point.module), "__file__", None)
    source = Path(file).read_bytes() if file else b""
    _loaded[point.name] = Plugin(point.name, hashlib.sha256(source).hexdigest(), additions)


def _execute(place: Path, source: bytes) -> ModuleType:
    """Run a file as a module. Its name is the same in every process, so that what is pickled in one
    is found in the other.
    """
    name = f"{_MODULE}{place.stem}_{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        exec(compile(source, str(place), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _run(title: str, execute: Callable[[], object]) -> Additions:
    """Run a plugin's code and note what it adds; any error becomes one line."""
    try:
        with noting() as additions:
            execute()
    except VdlaError as error:
        raise VdlaError(f"plugin {title}: {error}") from error
    except (Exception, SystemExit) as error:
        raise VdlaError(f"plugin {title}: {_told(error, _line_of(error))}") from error
    return additions


def find_fault(error: Exception) -> str | None:
    """An error that came up in a plugin's code while it ran, in one line; None for any other."""
    where = _line_of(error)
    return f"plugin: {_told(error, where)}" if where else None


def _told(error: BaseException, where: str) -> str:
    text = " ".join(str(error).split())
    return f"expected code that runs, got {type(error).__name__}{where}: {text}"


def _line_of(error: BaseException) -> str:
    """The place in a plugin's file where an error came from."""
    modules = {point.module for point in _entry_points()}
    trace, found = error.__traceback__, ""
    while trace is not None:
        file, name = trace.tb_frame.f_code.co_filename, trace.tb_frame.f_globals.get("__name__", "")
        if name.startswith(_MODULE) or name in modules:
            found = f" in line {trace.tb_lineno} of {Path(file).name}"
        trace = trace.tb_next
    return found
