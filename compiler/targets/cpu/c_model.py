"""What a C program finds in a compiled graph: ``vdla_model``, as ``runtime/vdla.h`` declares it."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ....runtime.native import MODEL_API_VERSION, MemoryPlan, TensorType

_POINTER = ir.PointerType()
_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
#: name, dtype, shape, rank, bytes
_TENSOR = ir.LiteralStructType([_POINTER, _POINTER, _POINTER, _I32, _I64])


def emit_model(
    module: ir.Module,
    run: ir.Function,
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
    parameters_bytes: int,
    parameters_checksum: int,
    plan: MemoryPlan,
) -> None:
    """Add the global constant that describes ``run``; its fields are those of the header. The
    checksum of the parameters is their CRC-32.
    """
    fields = [
        _I32(MODEL_API_VERSION),
        _I32(parameters_checksum),
        _I64(parameters_bytes),
        _I64(plan.planned_bytes),
        _I32(len(inputs)),
        _I32(len(outputs)),
        _table(module, "vdla_inputs", inputs),
        _table(module, "vdla_outputs", outputs),
        run,
    ]
    model = ir.LiteralStructType([field.type for field in fields[:-1]] + [_POINTER])
    _global(module, "vdla_model", ir.Constant(model, fields), linkage="")


def _table(module: ir.Module, name: str, tensors: Sequence[TensorType]) -> ir.GlobalVariable:
    rows = []
    for index, tensor in enumerate(tensors):
        at = f"{name}.{index}"
        shape = ir.ArrayType(_I64, len(tensor.shape))
        fields = [
            _text(module, f"{at}.name", tensor.name),
            _text(module, f"{at}.dtype", tensor.dtype),
            _global(module, f"{at}.shape", ir.Constant(shape, [_I64(n) for n in tensor.shape])),
            _I32(len(tensor.shape)),
            _I64(tensor.size_bytes),
        ]
        rows.append(ir.Constant(_TENSOR, fields))
    return _global(module, name, ir.Constant(ir.ArrayType(_TENSOR, len(rows)), rows))


def _text(module: ir.Module, name: str, text: str) -> ir.GlobalVariable:
    data = bytearray(text.encode() + b"\0")
    return _global(module, name, ir.Constant(ir.ArrayType(_I8, len(data)), data))


def _global(
    module: ir.Module, name: str, value: ir.Constant, linkage: str = "private"
) -> ir.GlobalVariable:
    found = ir.GlobalVariable(module, value.type, name)
    found.linkage, found.global_constant = linkage, True
    found.initializer = value  # type: ignore[assignment]
    return found
