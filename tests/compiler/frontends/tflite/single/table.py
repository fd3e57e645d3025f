"""Every operator of TensorFlow Lite Micro by every type: exact, or refused by name.

``python -m tests.compiler.frontends.tflite.single.table`` writes the table into docs/tflite.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret_runs
from vdla.isa.errors import VdlaError

from . import elements, memory, moving, signals, sums
from .draft import Case, Draft, Refused, micro

ROWS = {**elements.ROWS, **memory.ROWS, **moving.ROWS, **signals.ROWS, **sums.ROWS}
TYPES = ("float32", "int8", "uint8", "int16", "int32", "int64", "uint32", "uint64", "bool")
#: How the table says that it means all types.
ALL, EVERY_TYPE = "all", ", ".join(TYPES)
WORDS = EXACT, ROUNDED, REFUSED = "exact", "last bits", "refused"
NONE = ""
#: Functions of float32 whose last bits differ in some cases, however few the table is made from.
LIBRARY = ("COS", "ELU", "EXP", "L2_NORMALIZATION", "LOG", "SIN")
PAGE = Path(__file__).parents[5] / "docs" / "tflite.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
#: Cases of each operator and type that the table is made from.
CASES = 3
#: What float results may differ by: the order of sums, and functions of the C library.
TOLERANCE = 2e-5


def draw(kind: str, dtype: str, number: int) -> Case:
    """One case, the same each time."""
    seed = [number, *kind.encode()]
    return ROWS[kind](Draft(np.random.default_rng(seed), dtype))


def same(made: np.ndarray, expected: np.ndarray) -> bool:
    typed = made.dtype == expected.dtype and made.shape == expected.shape
    return typed and np.array_equal(made, expected, equal_nan=made.dtype.kind == "f")


def outcome(case: Case) -> str:
    """What becomes of a case.

    Raises
    ------
    AssertionError
        For a result that is neither exact nor a float that differs in the last bits.
    """
    try:
        expected = micro(case)
    except Refused:
        return NONE
    try:
        graph = import_tflite(case.data)
    except VdlaError as error:
        assert "\n" not in str(error)
        return REFUSED
    runs = interpret_runs(graph, case.inputs, *case.later)
    made = [y for outputs in runs for y in outputs]
    if all(same(y, wanted) for y, wanted in zip(made, expected, strict=True)):
        return EXACT
    for y, wanted in zip(made, expected, strict=True):
        assert y.dtype == np.float32 and wanted.dtype == np.float32, f"{y}\nexpected {wanted}"
        np.testing.assert_allclose(y, wanted, rtol=TOLERANCE, atol=TOLERANCE)
    return ROUNDED


def summary(kind: str, dtype: str, cases: int) -> str:
    """What becomes of some cases: the worst of them."""
    try:
        found = {outcome(draw(kind, dtype, number)) for number in range(cases)}
    except AssertionError as error:
        raise AssertionError(f"{kind} of {dtype}: {error}") from None
    if dtype == "float32" and kind in LIBRARY:
        found.add(ROUNDED)
    return next((word for word in (REFUSED, ROUNDED, EXACT) if word in found), NONE)


def cells() -> dict[tuple[str, str], str]:
    """The table in the documentation."""
    found: dict[tuple[str, str], str] = {}
    for row in PAGE.read_text().split(BEGIN)[1].split(END)[0].splitlines()[2:]:
        kind, *columns = (cell.strip() for cell in row.strip("|").split("|"))
        words = dict.fromkeys(TYPES, NONE)
        for word, types in zip(WORDS, columns, strict=True):
            words |= dict.fromkeys(types.replace(ALL, EVERY_TYPE).split(", "), word)
        found |= {(kind, dtype): words[dtype] for dtype in TYPES}
    return found


def text(cases: int) -> str:
    """The table."""
    lines = [f"| operator | {' | '.join(WORDS)} |", "|---" * (len(WORDS) + 1) + "|"]
    for kind in sorted(ROWS):
        found = {dtype: summary(kind, dtype, cases) for dtype in TYPES}
        columns = [", ".join(t for t in TYPES if found[t] == word) for word in WORDS]
        lines.append(f"| {kind} | {' | '.join(columns).replace(EVERY_TYPE, ALL)} |")
    return "\n".join(lines) + "\n"


def write() -> None:
    """Write the table into its page."""
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + text(CASES) + END + rest.split(END)[1])


if __name__ == "__main__":
    write()
