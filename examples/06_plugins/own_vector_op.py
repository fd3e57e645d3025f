"""A plugin with an operator of the vector unit: the absolute difference.

    vdla asm PROGRAM.asm --plugin examples/06_plugins/own_vector_op.py
    vdla verify --hw 4x4 --plugin examples/06_plugins/own_vector_op.py

Its meaning is written once, in the operations of a kit. NumPy, the SimPy model and the RTL bring
the kit; assembler, checker, random programs and coverage iterate the table. A configuration has
another hash with it, so that no core without the operator runs such a program.
"""

from __future__ import annotations

from vdla.isa.vector_ops import VectorOp, register_vector_op

register_vector_op(
    VectorOp("absdiff", 9, "abs(a - b), wrapping", lambda k, a, b: k.max(k.sub(a, b), k.sub(b, a)))
)
