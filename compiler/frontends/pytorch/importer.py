"""Import of PyTorch models: programs that ``torch.export`` made, in core ATen operators.

``graph.py`` goes through the program. ``ops/`` has a reader per ATen operator, which expresses it
in ONNX's operators; their readers do the rest. torch itself is an optional package.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...graph.ir import Graph
from ..file_kinds import refuse_other_kinds
from ..sizes import ONE, Sizes


def is_torch(source: object) -> bool:
    """Whether a model is an ``ExportedProgram`` or a file of one. A file is recognised by its
    suffix, bytes by being an archive, which no other format of models is."""
    if isinstance(source, str | Path):
        return Path(source).suffix == ".pt2"
    if isinstance(source, bytes):
        return source[:4] == b"PK\x03\x04"
    return type(source).__module__.startswith("torch.export")


def import_torch(source: str | Path | bytes | Any, sizes: Sizes = ONE) -> Graph:
    """Read a program into a graph.

    Parameters
    ----------
    source
        A ``torch.export.ExportedProgram``, a file that ``torch.export.save`` wrote, or its bytes.
    sizes
        Of dimensions of the inputs that the program leaves open, and values of inputs.

    Raises
    ------
    VdlaError
        When the file is unreadable, damaged or of another kind, or a node is not supported; the
        message names the node, its operator and the line of the model that it came from.
    ModuleNotFoundError
        Where torch is not installed.
    """
    return open_torch(source)(sizes)


def open_torch(source: str | Path | bytes | Any) -> Callable[[Sizes], Graph]:
    """What reads a program for given sizes. Errors as :func:`import_torch`."""
    if isinstance(source, str | Path | bytes):
        refuse_other_kinds(source, "PyTorch model" if isinstance(source, bytes) else str(source))
    from . import graph as pytorch_graph  # torch takes seconds to import, and few models need it

    return pytorch_graph.open_program(source)
