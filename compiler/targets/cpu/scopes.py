"""The host's memory and thread axes, as schedules name them."""

from __future__ import annotations

from ...tir.scopes import MemoryScope

SCOPES = {"global": MemoryScope("global", "main memory")}
#: The axes of a grid of threads, which the host goes through one after the other.
THREAD_AXES = tuple(f"{level}.{axis}" for level in ("blockIdx", "threadIdx") for axis in "xyz")
