"""Tensor expressions and schedules: what to compute, and separately how.

::

    x, w = te.placeholder((8, 16), "int8", "x"), te.placeholder((32, 16), "int8", "w")
    k = te.reduce_axis(16, "k")
    y = te.compute((8, 32), lambda i, j: te.sum_of(x[i, k].astype("int32") * w[j, k], k))
    s = te.create_schedule(y)
    outer, inner = s[y].split(y.axes[1], 8)
    s[y].vectorize(inner)
"""

from __future__ import annotations

from .errors import ScheduleError
from .expr import Const, Expr, Var, all_of, cast, maximum, minimum, popcount, select
from .intrinsic import TensorIntrin
from .schedule import Schedule, create_schedule
from .stage import Stage
from .tensor import (
    IterVar,
    Tensor,
    clip,
    comm_reducer,
    compute,
    extern,
    max_of,
    min_of,
    placeholder,
    reduce_axis,
    scan,
    sum_of,
)

__all__ = [
    "Const", "Expr", "IterVar", "Schedule", "ScheduleError", "Stage", "Tensor", "TensorIntrin",
    "Var", "all_of", "cast", "clip", "comm_reducer", "compute", "create_schedule", "extern",
    "max_of", "maximum", "min_of", "minimum", "placeholder", "popcount", "reduce_axis", "scan",
    "select", "sum_of",
]  # fmt: skip
