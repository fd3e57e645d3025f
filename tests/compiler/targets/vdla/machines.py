"""Machines on which tests run the RTL. There are few, because each takes half a minute to build."""

from __future__ import annotations

from dataclasses import replace

from vdla.isa.params import PRESETS

#: With tables of int16 and room for the parameters of a row.
RTL_TABLES = replace(PRESETS["4x4"], vector_table=2, par_depth=128)
#: With windows that slide and tables of int8, and room for both.
RTL_WINDOWS = replace(
    PRESETS["4x4"], vector_window=3, vector_table=1, inp_depth=256, out_depth=96, par_depth=192
)
