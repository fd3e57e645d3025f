"""``docs/isa.md`` and the C header ``docs/vdla_isa.h``, written from the specification.

``python -m vdla.isa.docs`` writes both, ``--check`` exits 1 when one of them is stale.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import ModuleType

from . import packed
from .encoding import HEADER, Field, layout, layout_bits, uop_layout
from .insn import CLASSES, Uop
from .opcodes import (
    DST_MEMORIES,
    LOADABLE,
    READERS,
    SRC0_MEMORIES,
    SRC1_MEMORIES,
    WRITER,
    Opcode,
    Unit,
)
from .params import DEFAULT, MEMORIES, PRESETS, HwParams
from .program import FORMAT_VERSION, MAGIC
from .status import Status
from .vector_ops import POST_OPS, VECTOR_OPS

SpecOf = Callable[[HwParams], tuple[Field, ...]]

_INTRODUCTION = """\
# The instruction set

*Generated from `isa/` by `python -m vdla.isa.docs`; change the specification, not this page.*

A program is one stream of instructions in DRAM. *Fetch* reads them in order and hands each to the
queue of its unit: {units}. Units run side by side; only dependency tokens
order them. One counter exists for each ordered pair of units: an instruction waits until the
counters of all units in its `pop` mask are above zero and takes one token from each; when it has
ended it gives one token to each unit in its `push` mask. Within a unit instructions start and end
in order. `docs/timing.md` says in which cycles.

Everything in DRAM is little-endian. Numbers below are those of the default configuration
`{hash}`: {insn_bytes} bytes an instruction, {batch} x {block_in} activations of int8 by
{block_in} x {block_out} weights of int8 into int32. Field widths follow the depths of the
scratchpads where the column *follows* says so.
"""

_SEMANTICS = """\
Scratchpads, parameter registers and token counters are zero at reset. An entry of `inp` and `out`
is [batch][block] int8, of `wgt` [block_out][block_in] int8, of `acc` and `tmp` [batch][block]
int32, of `par` [block] int32, applied to every row of the batch.
"""

_VECTOR_NOTE = """\
With `reduce` = r the r innermost loops fold into one result: its first iteration computes the
operator on both operands, every later one combines its term with the result, and only the last
writes. `table` and `table_diff` exist with `vector_table`, `window` with `vector_window`.

`window` computes several results at once, one entry of an image an iteration. Each lane keeps
`vector_window` sums. An iteration adds the product of a's lowest byte and byte i of b to sum i, for
every i. Before the first iteration of a result the sums move on: sum i becomes sum i + 1, and sum 0
is 0. The result is sum `imm`. The first `imm` results of each run of the innermost loop that is not
reduced are warm-up outputs: they are not written, and the next result goes to the first entry.

Example: a row of six pixels and a kernel of 3 x 3, with the three weights of a row of the kernel in
the bytes of an entry of par. n2 = 6 runs over columns of the image and n3 = 3, which is reduced,
over their rows; `imm` = 2. 18 iterations write four results, of nine products each.

The post-operation then turns the result r into what is written:
"""

_POST_NOTE = """\
`bias`, `multiplier`, `shift` (int32 per channel), the zero point and the clamp `lo`..`hi` come from
the latest PARAM instruction. The sum r + bias wraps at 32 bits. Without a post-operation, a result
for `out` saturates to -128..127 and a result for `tmp` keeps its 32 bits.
"""

_FILE_NOTE = """\
A program file starts with `{magic}` and format version {version}; it holds the configuration with
its hash, the instructions, the constant segments of DRAM and the addresses of inputs and outputs,
under a SHA-256. A core whose configuration register has another hash does not start the program.
"""


def isa_page(params: HwParams | None = None) -> str:
    """The text of ``docs/isa.md`` for a configuration (the default one unless given)."""
    params = params or PRESETS[DEFAULT]
    knobs = {
        "units": ", ".join(f"*{unit.name.lower()}*" for unit in Unit),
        "hash": params.hash,
        "insn_bytes": params.insn_bytes,
        "batch": params.batch,
        "block_in": params.block_in,
        "block_out": params.block_out,
    }
    parts = [
        _INTRODUCTION.format(**knobs),
        "## Memories\n",
        _table(("memory", "entries", "bytes each", "written by", "read by"), _memories(params)),
        _SEMANTICS,
        "## Instructions\n",
        "Every instruction starts with the same header:\n",
        _fields_table(lambda _: HEADER, params),
    ]
    for opcode in Opcode:
        bits = layout_bits(layout(opcode, params))
        parts += [
            f"### {opcode.name}\n",
            f"Opcode {opcode.value}, unit {opcode.unit.name.lower()}, {bits} bits.\n",
            f"{_docstring(CLASSES[opcode])}\n",
            _fields_table(partial(_body, opcode), params, layout_bits(HEADER)),
        ]
    parts += [
        "### Packed weights\n",
        f"With `packed_weights`. {_docstring(packed, 1)}\n",
        "### Micro-op\n",
        f"{_docstring(Uop)} {params.entry_bytes('uop')} bytes each.\n",
        _fields_table(uop_layout, params),
        "## Vector operators\n",
        _table(
            ("code", "name", "result"), [(op.code, f"`{op.name}`", op.doc) for op in VECTOR_OPS]
        ),
        _VECTOR_NOTE,
        _table(("code", "name", "effect"), [(op.code, f"`{op.name}`", op.doc) for op in POST_OPS]),
        _POST_NOTE,
        "## Status codes\n",
        _table(("code", "name", "meaning"), [(s.value, f"`{s.name}`", s.doc) for s in Status]),
        "## Program files\n",
        _FILE_NOTE.format(magic=MAGIC.decode(), version=FORMAT_VERSION),
    ]
    return "\n".join(parts)


def _body(opcode: Opcode, params: HwParams) -> tuple[Field, ...]:
    return layout(opcode, params)[len(HEADER) :]


def _memories(params: HwParams) -> list[tuple[object, ...]]:
    return [
        (
            f"`{memory}`",
            params.depth(memory),
            params.entry_bytes(memory),
            WRITER[memory].name.lower(),
            ", ".join(unit.name.lower() for unit in READERS[memory]),
        )
        for memory in MEMORIES
    ]


def _docstring(of: type | ModuleType, begin: int = 0) -> str:
    """A docstring as a line, from a paragraph on."""
    paragraphs = (inspect.getdoc(of) or "").split("\n\n")[begin:]
    return " ".join(" ".join(paragraphs).split()).replace("``", "`")


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    cells = (" | ".join(str(cell).replace("|", "\\|") for cell in line) for line in lines)
    return "".join(f"| {line} |\n" for line in cells)


def _fields_table(spec_of: SpecOf, params: HwParams, lsb: int = 0) -> str:
    rows = []
    for index, field in enumerate(spec_of(params)):
        kind = f"{field.bits}, signed" if field.signed else str(field.bits)
        rows.append((lsb, kind, f"`{field.name}`", _follows(spec_of, index), field.doc))
        lsb += field.bits
    return _table(("bit", "bits", "field", "follows", "meaning"), rows)


def _follows(spec_of: SpecOf, index: int) -> str:
    """The depths that a field's width follows, found by raising one depth at a time."""
    shallow = HwParams(block_in=4, block_out=4, **{f"{m}_depth": 16 for m in MEMORIES})
    bits = spec_of(shallow)[index].bits
    deeper = {m: replace(shallow, **{f"{m}_depth": 4096}) for m in MEMORIES}
    return ", ".join(
        f"`{m}_depth`" for m, deep in deeper.items() if spec_of(deep)[index].bits > bits
    )


# ---- C ----

_C_HEAD = """\
/* Instruction set of VDLA for configuration {hash}. Generated by `python -m vdla.isa.docs`. */
#ifndef VDLA_ISA_H
#define VDLA_ISA_H

#include <stdint.h>

"""

_C_TAIL = """\

/* Put `value` (two's complement if signed) into an instruction or micro-op of zeroed bytes. */
static inline void vdla_put(uint8_t *word, unsigned lsb, unsigned bits, uint64_t value) {
    for (unsigned i = 0; i < bits; i++) {
        word[(lsb + i) / 8] |= (uint8_t)((value >> i & 1) << (lsb + i) % 8);
    }
}

#define VDLA_PUT(word, field, value) \\
    vdla_put((word), VDLA_##field##_LSB, VDLA_##field##_BITS, (uint64_t)(value))

#endif
"""


def c_header(params: HwParams | None = None) -> str:
    """The text of a C header for a configuration (the default one unless given)."""
    params = params or PRESETS[DEFAULT]
    lines = [f"#define VDLA_CONFIG_HASH 0x{params.hash}u"]
    lines += [f"#define VDLA_{f.name.upper()} {getattr(params, f.name)}" for f in fields(params)]
    lines += [f"#define VDLA_INSN_BYTES {params.insn_bytes}"]
    lines += [f"#define VDLA_{m.upper()}_ENTRY_BYTES {params.entry_bytes(m)}" for m in MEMORIES]
    codes: dict[str, Iterable[tuple[str, int]]] = {
        "OPCODE": [(o.name, o.value) for o in Opcode],
        "UNIT": [(u.name, 1 << u.value) for u in Unit],
        "MEMORY": [(m, i) for i, m in enumerate(LOADABLE)],
        "SRC0": [(m, i) for i, m in enumerate(SRC0_MEMORIES)],
        "SRC1": [(m, i) for i, m in enumerate(SRC1_MEMORIES)],
        "DST": [(m, i) for i, m in enumerate(DST_MEMORIES)],
        "OP": [(op.name, op.code) for op in VECTOR_OPS],
        "POST": [(op.name, op.code) for op in POST_OPS],
        "STATUS": [(s.name, s.value) for s in Status],
    }
    for prefix, pairs in codes.items():
        lines.append("")
        lines += [f"#define VDLA_{prefix}_{name.upper()} {code}" for name, code in pairs]
    layouts = {opcode.name: layout(opcode, params) for opcode in Opcode}
    for name, spec in {**layouts, "UOP": uop_layout(params)}.items():
        lines.append("")
        lines += _c_fields(name, spec)
    return _C_HEAD.format(hash=params.hash) + "\n".join(lines) + "\n" + _C_TAIL


def _c_fields(name: str, spec: tuple[Field, ...]) -> list[str]:
    lines, offset = [], 0
    for field in spec:
        stem = f"#define VDLA_{name}_{field.name.upper()}"
        lines += [f"{stem}_LSB {offset}", f"{stem}_BITS {field.bits}"]
        offset += field.bits
    return lines


# ---- the command ----


def generated() -> dict[str, str]:
    """File names under ``docs/`` and what they must hold."""
    return {"isa.md": isa_page(), "vdla_isa.h": c_header()}


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or with ``--check`` compare them; 1 when one is stale."""
    parser = argparse.ArgumentParser(prog="python -m vdla.isa.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when a file is stale")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "docs")
    options = parser.parse_args(arguments)
    stale = []
    for name, text in generated().items():
        path = options.out / name
        if not options.check:
            path.write_text(text, "utf-8")
        elif not path.is_file() or path.read_text("utf-8") != text:
            stale.append(str(path))
    for path in stale:
        print(f"{path}: stale, run python -m vdla.isa.docs", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
