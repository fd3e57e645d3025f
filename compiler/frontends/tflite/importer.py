"""Import of TensorFlow Lite models: 8-bit operators with the reference kernels' arithmetic.

``file.py`` reads the file's tables, ``graph.py`` keeps tensors and layouts, and ``operators.py``,
``elementwise.py`` and ``floats.py`` have a reader per operator.
"""

from __future__ import annotations

from pathlib import Path

from ....isa.errors import VdlaError
from ...graph.ir import Graph
from ...graph.verify import verify
from . import floats as tflite_float
from . import operators as tflite_operators
from .file import IDENTIFIER, read_model
from .floats import by_type
from .graph import Importer

#: One row per operator; of one with an integer and a float form, the first operand's type decides.
READERS = {
    kind: by_type(reader, tflite_float.READERS[kind]) if kind in tflite_float.READERS else reader
    for kind, reader in tflite_operators.READERS.items()
}


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
    model = read_model(data, where)
    try:
        graph = Importer(model, batch).run(READERS)
    except VdlaError as error:
        raise VdlaError(f"{where}: {error}") from None
    verify(graph)
    return graph
