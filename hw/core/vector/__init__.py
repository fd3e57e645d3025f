"""Four affine loops over int32 vectors, an operator of the table, reduction, requantisation::

    instructions ─► Issue ─► Pipeline ─► Controls ─► Lane (one for each element of a pass)
                    Loops                              Operands
                    Addresses           Parameters ─►  Operator
                    Interlock                   ◄─     Reduction
                                                       Requantizer ─► tmp, out

:class:`~.stages.Stage` is the table of the pipeline. The values of PARAM flow down it as vectors
that are not requantised, and :class:`~.parameters.Parameters` captures each in the stage that uses
it, so parameters change between two vectors without a bubble. An iteration that reads an entry of
tmp waits while another one in the pipeline has still to write it. With several passes the parts of
an iteration follow one another, each with a row of tmp; out is written with the last.
"""

from .unit import Vector

__all__ = ["Vector"]
