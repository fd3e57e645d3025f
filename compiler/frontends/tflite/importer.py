"""Import of TensorFlow Lite models: 8-bit operators with the reference kernels' arithmetic.

``file.py`` reads the file's tables, ``graph.py`` keeps tensors and layouts. ``ops/`` has a file of
readers for each family of operators, ``audio/`` has those for sounds, ``readers.py`` lists all.
"""

from __future__ import annotations

from pathlib import Path

from ....isa.errors import VdlaError
from ...graph.ir import Graph
from ...graph.verify import verify
from .file import IDENTIFIER, read_model
from .graph import Importer
from .readers import READERS


def is_tflite(source: object) -> bool:
    """Whether a model is a TensorFlow Lite file, by its suffix; bytes by their identifier."""
    if isinstance(source, str | Path):
        return Path(source).suffix == ".tflite"
    return isinstance(source, bytes) and source[4:8] == IDENTIFIER


def import_tflite(source: str | Path | bytes, *, batch: int = 1) -> Graph:
    """Read a model into a graph of integer operators.

    Parameters
    ----------
    source
        A file, or the bytes of one.
    batch
        Images at a time, at least 1, for a model whose first dimensions are symbolic.

    Raises
    ------
    VdlaError
        When the file is unreadable or damaged, or an operator is not supported; the message names
        the operator or the tensor.
    """
    where = "model" if isinstance(source, bytes) else str(source)
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:
        raise VdlaError(f"{where}: {error.strerror or error}") from None
    try:
        graph = Importer(read_model(data), batch, READERS).run()
    except VdlaError as error:
        raise VdlaError(f"{where}: {error}") from None
    verify(graph)
    return graph
