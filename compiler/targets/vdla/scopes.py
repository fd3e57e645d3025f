"""The accelerator's memories, as schedules name them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from ....isa.opcodes import READERS, WRITER, Unit
from ....isa.params import HwParams
from ...tir.scopes import Access, MemoryScope

#: How each unit accesses memories.
ACCESSES: dict[Unit, Access] = {
    Unit.LOAD: "copy",
    Unit.GEMM: "intrinsic",
    Unit.VECTOR: "arithmetic",
    Unit.STORE: "copy",
}
#: Scratchpads for tensors: what each one holds, and the dtype of its elements.
SCRATCHPADS = {
    "inp": ("activations", "int8"),
    "wgt": ("weight tiles", "int8"),
    "par": ("parameters per channel", "int32"),
    "acc": ("accumulators", "int32"),
    "tmp": ("temporaries of the vector unit", "int32"),
    "out": ("results on their way to DRAM", "int8"),
}
#: Those that only operators of the tensor core use.
TENSOR_SCRATCHPADS = ("wgt", "acc")
DRAM = MemoryScope("global", "DRAM", writers=("copy",), readers=("copy",))


@cache
def memory_scopes(params: HwParams) -> Mapping[str, MemoryScope]:
    """The memories of a configuration by name."""
    scratchpads = {
        name: MemoryScope(
            name, doc, params.depth(name), params.entry_bytes(name) // np.dtype(dtype).itemsize,
            (dtype,), (ACCESSES[WRITER[name]],), tuple(ACCESSES[unit] for unit in READERS[name]),
        )
        for name, (doc, dtype) in SCRATCHPADS.items()
    }  # fmt: skip
    return {DRAM.name: DRAM} | scratchpads
