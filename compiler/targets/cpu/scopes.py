"""The processor's memories and thread axes, as schedules name them."""

from __future__ import annotations

from ...tir.scopes import MemoryScope
from .micro_kernels import TILE_SUMS, TILE_W, TILE_X

SCOPES = {
    scope.name: scope for scope in (MemoryScope("global", "main memory"), TILE_SUMS, TILE_X, TILE_W)
}
#: The axes of a grid of threads, which the host goes through one after the other.
THREAD_AXES = tuple(f"{level}.{axis}" for level in ("blockIdx", "threadIdx") for axis in "xyz")
