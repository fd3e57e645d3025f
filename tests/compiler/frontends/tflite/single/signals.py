"""Rows of custom operators on sounds: each model with a state runs several times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tflite
from flatbuffers import flexbuffers

from .draft import Case, Draft, Maker
from .memory import variable

RUNS = 5
#: Numbers of a type in options, which tell a kernel its type.
CODES = {"float32": tflite.TensorType.FLOAT32, "int16": tflite.TensorType.INT16,
         "int32": tflite.TensorType.INT32}  # fmt: skip


def packed(options: dict[str, int | bool]) -> bytes:
    """Options as a flexbuffer."""
    builder = flexbuffers.Builder()
    with builder.Map():
        for name, value in options.items():
            builder.Key(name)
            builder.Bool(value) if isinstance(value, bool) else builder.Int(value)
    return bytes(builder.Finish())


def add(
    d: Draft, kind: str, inputs: Sequence[int], outputs: Sequence[int], **options: int | bool
) -> Sequence[int]:
    """Add a custom operator; returns its results."""
    d.builder.operator(kind, inputs, outputs, own=packed(options))
    return outputs


def finished(
    d: Draft, kind: str, inputs: Sequence[int], outputs: Sequence[int], **options: int | bool
) -> Case:
    """The model of one custom operator."""
    add(d, kind, inputs, outputs, **options)
    data = d.builder.file(d.inputs, list(outputs))
    return Case(data, d.values, len(outputs), d.later)


def only_valid(d: Draft, kind: str, inputs: Sequence[int], shape: Sequence[int],
               **options: int | bool) -> Case:  # fmt: skip
    """A model whose first result counts only where the second says so: what the kernel leaves in
    it otherwise is what it finds in memory."""
    made, valid = d.tensor(shape), d.tensor((), "bool")
    add(d, kind, inputs, [made, valid], **options)
    nothing = d.constant(np.zeros(shape), d.dtype)
    flags, result = d.tensor((1,) * len(shape), "bool"), d.tensor(shape)
    d.builder.operator("RESHAPE", [valid, d.constant([1] * len(shape))], [flags], "ReshapeOptions")
    d.builder.operator("SELECT_V2", [flags, made, nothing], [result])
    data = d.builder.file(d.inputs, [result, valid])
    return Case(data, d.values, 2, d.later)


def sound(d: Draft, count: int) -> np.ndarray:
    """int16 of random loudness, sometimes with the lowest number."""
    loud = 1 << d.size(0, 15)
    values = d.rng.integers(-loud, loud, count).astype(np.int16)
    if d.chance():
        values[d.rng.integers(0, count, d.size(1, 3))] = -(1 << 15)
    return values


def spread(d: Draft, shape: Sequence[int], bits: int) -> np.ndarray:
    """Positive integers of any magnitude of up to ``bits`` bits, and the largest ones."""
    top = (1 << bits) - 1
    values = d.rng.integers(0, top, shape, np.uint64, endpoint=True)
    values >>= d.rng.integers(0, bits, shape).astype(np.uint64)
    ends = d.rng.integers(0, 8, shape)
    values = np.where(ends == 0, np.uint64(top), values)
    return np.where(ends == 1, np.uint64(0), values).astype(f"uint{bits}")


def window(d: Draft) -> Case:
    width = d.size(1, 40)
    shape = (*d.shape(d.size(0, 2), 4), width)
    weights = d.draw((width,), "int16", -(1 << 15), (1 << 15) - 1)
    operand = d.constant(weights, "int16") if d.chance() else d.x((width,), values=weights)
    x = d.x(shape)
    return finished(d, "SignalWindow", [x, operand], [d.tensor(shape)], shift=d.size(0, 20))


def fft_auto_scale(d: Draft) -> Case:
    size = d.size(1, 60)
    x = d.x((size,), values=sound(d, size) if d.dtype == "int16" else None)
    return finished(d, "SignalFftAutoScale", [x], [d.tensor((size,)), d.tensor((), "int32")])


def energy(d: Draft) -> Case:
    """Of all numbers, or of a part, which is chosen of their logarithms, as the kernel writes no
    others and there is no choice of uint32."""
    size = d.size(1, 60)
    start, end = sorted(d.rng.choice(size + 1, 2, replace=False).tolist())
    if d.chance():
        start, end = 0, size
    x, made, logs = d.x((2 * size,)), d.tensor((size,), "uint32"), d.tensor((size,), "int16")
    options = {"start_index": start, "end_index": end}
    if (start, end) == (0, size):
        return finished(d, "SignalEnergy", [x], [made], **options)
    add(d, "SignalEnergy", [x], [made], **options)
    add(d, "SignalFilterBankLog", [made], [logs], output_scale=1600, input_correction_bits=0)
    places = np.arange(size)
    inside = d.constant((start <= places) & (places < end), "bool")
    nothing = d.constant(np.zeros(size), "int16")
    return d.case("SELECT_V2", [inside, logs, nothing], [d.tensor((size,), "int16")])


def filter_bank(d: Draft) -> Case:
    """Bands that lie anywhere, of weights that lie anywhere."""
    size, channels = d.size(1, 80), d.size(1, 12)
    known = d.size(1, 100)
    widths = d.rng.integers(0, min(size, known) + 1, channels + 1)
    starts = [d.size(0, size - int(w)) for w in widths]
    firsts = [d.size(0, known - int(w)) for w in widths]
    weights = [d.constant(d.draw((known,), "int16", -4096, 4096), "int16") for _ in range(2)]
    bands = [d.constant(values, "int16") for values in (starts, firsts, widths)]
    x = d.x((size,), values=spread(d, (size,), 32))
    return finished(d, "SignalFilterBank", [x, *weights, *bands],
                    [d.tensor((channels,), "uint64")], num_channels=channels)  # fmt: skip


def square_root(d: Draft) -> Case:
    """Of random numbers, of squares, and of numbers beside them."""
    size = d.size(1, 200)
    values = spread(d, (size,), 64)
    roots = spread(d, (size,), 32).astype(np.uint64)
    near = roots * roots + d.rng.integers(-1, 2, size).astype(np.uint64)
    middle = roots * roots + roots + d.rng.integers(0, 2, size).astype(np.uint64)
    pick = d.rng.integers(0, 3, size)
    values = np.choose(pick, [values, near, middle])
    x = d.x((size,), values=values)
    bits = d.x((), "int32", values=np.array(d.size(0, 15) * d.size(0, 1), np.int32))
    return finished(d, "SignalFilterBankSquareRoot", [x, bits], [d.tensor((size,), "uint32")])


def spectral_subtraction(d: Draft) -> Case:
    d.runs, channels, bits = RUNS, d.size(1, 40), d.size(8, 16)
    low = 1 << d.size(4, 32)
    x = d.x((channels,), low=0, high=low - 1)
    smoothing, other = d.size(0, 1 << bits), d.size(0, 1 << bits)
    return finished(
        d, "SignalFilterBankSpectralSubtraction", [x],
        [d.tensor((channels,), "uint32") for _ in range(2)],
        num_channels=channels, smoothing=smoothing, one_minus_smoothing=(1 << bits) - smoothing,
        alternate_smoothing=other, alternate_one_minus_smoothing=(1 << bits) - other,
        smoothing_bits=d.size(0, 12), min_signal_remaining=d.size(0, 1 << bits),
        clamping=d.chance(), spectral_subtraction_bits=bits,
    )  # fmt: skip


def logarithm(d: Draft) -> Case:
    size = d.size(1, 300)
    x = d.x((size,), values=spread(d, (size,), 32))
    return finished(
        d, "SignalFilterBankLog", [x], [d.tensor((size,), "int16")],
        output_scale=d.size(1, 4000), input_correction_bits=d.size(0, 8),
    )  # fmt: skip


def pcan(d: Draft) -> Case:
    size = d.size(1, 200)
    table = d.constant(d.draw((125,), "int16", -(1 << 15), (1 << 15) - 1), "int16")
    values = [spread(d, (size,), 32) for _ in range(2)]
    operands = [d.x((size,), values=v) for v in values]
    return finished(d, "SignalPCAN", [*operands, table], [d.tensor((size,), "uint32")],
                    snr_shift=d.size(0, 31))  # fmt: skip


def delay(d: Draft) -> Case:
    d.runs, shape = RUNS, d.shape(d.size(1, 3), 12)
    return finished(d, "SignalDelay", [d.x(shape)], [d.tensor(shape)], delay_length=d.size(0, 40))


def framer(d: Draft) -> Case:
    d.runs, step, frames = RUNS, d.size(1, 10), d.size(1, 3)
    prefill = d.chance()
    size = d.size(step if prefill else 1, 30)
    outer = d.shape(d.size(0, 1), 3)
    x = d.x((*outer, frames * step))
    return only_valid(d, "SignalFramer", [x], (*outer, frames, size), frame_size=size,
                      frame_step=step, prefill=prefill)  # fmt: skip


def stacker(d: Draft) -> Case:
    d.runs, channels, left, right = 2 * RUNS, d.size(1, 8), d.size(0, 4), d.size(0, 3)
    depth = left + right + 1
    return only_valid(
        d, "SignalStacker", [d.x((channels,))], (depth * channels,), num_channels=channels,
        stacker_left_context=left, stacker_right_context=right, stacker_step=d.size(1, depth),
    )  # fmt: skip


def overlap_add(d: Draft) -> Case:
    d.runs, size, frames = RUNS, d.size(1, 30), d.size(1, 4)
    step, outer = d.size(1, size), d.shape(d.size(0, 2), 3)
    x = d.x((*outer, frames, size))
    code = CODES["int16" if d.dtype == "int16" else "float32"]
    made = d.tensor((*outer, frames * step))
    return finished(d, "SignalOverlapAdd", [x], [made], frame_step=step, T=code)


def circular_buffer(d: Draft) -> Case:
    d.runs, slots, size, quant = RUNS, d.size(1, 6), (d.size(1, 3), d.size(1, 6)), d.quant()
    x = d.x((1, 1, *size), quant=quant)
    y = variable(d, (1, slots, *size), d.dtype, quant)
    cycles = d.size(1, 3)
    flags = [d.tensor((1,), "bool")] if cycles > 1 or d.chance() else []
    return finished(d, "CIRCULAR_BUFFER", [x], [y, *flags], cycles_max=cycles)


def length(d: Draft) -> int:
    """The length of a transform."""
    if d.chance():
        return 1 << d.size(2, 9)
    return 2 * int(np.prod(d.rng.choice([2, 3, 4, 5], d.size(1, 3))))


def rfft(d: Draft) -> Case:
    """Of whole signals, or of shorter ones."""
    count, outer = length(d), d.shape(d.size(0, 2), 3)
    given = count if d.chance() else d.size(1, count)
    loud = {} if d.dtype == "float32" else loudness(d)
    x, y = d.x((*outer, given), **loud), d.tensor((*outer, count + 2))
    return finished(d, "SignalRfft", [x], [y], fft_length=count, T=CODES.get(d.dtype, 0))


def irfft(d: Draft) -> Case:
    count, outer = length(d), d.shape(d.size(0, 2), 3)
    loud = {} if d.dtype == "float32" else loudness(d)
    x, y = d.x((*outer, count + 2), **loud), d.tensor((*outer, count))
    return finished(d, "SignalIrfft", [x], [y], fft_length=count, T=CODES.get(d.dtype, 0))


def loudness(d: Draft) -> dict[str, int]:
    """Bounds of integers, up to those of their type."""
    most = 1 << d.size(4, 31 if d.dtype == "int32" else 15)
    return {"low": -most, "high": most - 1}


ROWS: dict[str, Maker] = {
    "CIRCULAR_BUFFER": circular_buffer,
    "SignalDelay": delay,
    "SignalEnergy": energy,
    "SignalFftAutoScale": fft_auto_scale,
    "SignalFilterBank": filter_bank,
    "SignalFilterBankLog": logarithm,
    "SignalFilterBankSpectralSubtraction": spectral_subtraction,
    "SignalFilterBankSquareRoot": square_root,
    "SignalFramer": framer,
    "SignalIrfft": irfft,
    "SignalOverlapAdd": overlap_add,
    "SignalPCAN": pcan,
    "SignalRfft": rfft,
    "SignalStacker": stacker,
    "SignalWindow": window,
}
