"""A model that turns a stream of sound into features, as front ends for speech do."""

from __future__ import annotations

import numpy as np

from .single.draft import Case, Draft
from .single.signals import CODES, add

#: Elements of a run, of a frame, and of its transform; channels; frames of a stack before the last.
STEP, FRAME, LENGTH, CHANNELS, PAST = 320, 480, 512, 40, 2


def bands(d: Draft) -> list[int]:
    """Triangles that overlap by half, on a scale of frequencies that is nearly logarithmic: the
    constants of a filter bank. Their weights have 12 fraction bits."""
    ends = 1127 * np.log(1 + np.linspace(0, 1, LENGTH // 2) * 8000 / 700)
    edges = np.linspace(ends[4], ends[-8], CHANNELS + 2)
    channel = np.searchsorted(edges, ends, side="right") - 1
    inside = np.flatnonzero((0 <= channel) & (channel <= CHANNELS))
    low, high = edges[channel[inside]], edges[channel[inside] + 1]
    falling = np.round((high - ends[inside]) / (high - low) * 4096).astype(np.int16)
    starts = np.searchsorted(channel[inside], np.arange(CHANNELS + 1))
    widths = np.diff([*starts, len(inside)])
    tables = (4096 - falling, falling, starts + inside[0], starts, widths)
    return [d.constant(table, "int16") for table in tables]


def gains() -> np.ndarray:
    """Gains that fall with the noise, which has 7 fraction bits: of 0 and 1, and for each further
    number of bits a parabola's value, slope and bend, and a gap."""
    gain = lambda noise: 2.0**21 * (noise / 128 + 80) ** -0.95  # noqa: E731
    table = [gain(0), gain(1)]
    for bits in range(2, 33):
        low, middle, high = (gain(part * 2.0 ** (bits - 1)) for part in (1, 1.5, 2))
        bend = 2 * (low + high - 2 * middle)
        table += [low, high - low - bend, bend, 0]
    return np.round(table).astype(np.int16)


def front_end(runs: int) -> Case:
    """The model, and a sound with silence, a chirp, noise and clipping."""
    d = Draft(np.random.default_rng(11), "int16")
    x = d.builder.tensor((1, STEP), "int16")
    frames, valid = d.tensor((1, 1, FRAME)), d.tensor((), "bool")
    add(d, "SignalFramer", [x], [frames, valid], frame_size=FRAME, frame_step=STEP, prefill=True)
    flat = d.tensor((FRAME,))
    d.builder.operator("RESHAPE", [frames, d.constant([FRAME])], [flat], "ReshapeOptions")
    hann = np.round(4096 * (0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(FRAME) + 0.5) / FRAME)))
    windowed = d.tensor((FRAME,))
    add(d, "SignalWindow", [flat, d.constant(hann, "int16")], [windowed], shift=12)
    scaled, bits = d.tensor((FRAME,)), d.tensor((), "int32")
    add(d, "SignalFftAutoScale", [windowed], [scaled, bits])
    spectrum = d.tensor((LENGTH + 2,))
    add(d, "SignalRfft", [scaled], [spectrum], fft_length=LENGTH, T=CODES["int16"])
    half = LENGTH // 2 + 1
    energy, sums = d.tensor((half,), "uint32"), d.tensor((CHANNELS,), "uint64")
    add(d, "SignalEnergy", [spectrum], [energy], start_index=0, end_index=half)
    add(d, "SignalFilterBank", [energy, *bands(d)], [sums], num_channels=CHANNELS)
    roots, cleaned, noise, gained = (d.tensor((CHANNELS,), "uint32") for _ in range(4))
    add(d, "SignalFilterBankSquareRoot", [sums, bits], [roots])
    add(d, "SignalFilterBankSpectralSubtraction", [roots], [cleaned, noise],
        num_channels=CHANNELS, smoothing=410, one_minus_smoothing=15974, alternate_smoothing=983,
        alternate_one_minus_smoothing=15401, smoothing_bits=10, min_signal_remaining=819,
        clamping=False, spectral_subtraction_bits=14)  # fmt: skip
    add(d, "SignalPCAN", [cleaned, noise, d.constant(gains(), "int16")], [gained], snr_shift=6)
    logs, past = d.tensor((CHANNELS,)), d.tensor((CHANNELS,))
    add(d, "SignalFilterBankLog", [gained], [logs], output_scale=64, input_correction_bits=3)
    add(d, "SignalDelay", [logs], [past], delay_length=CHANNELS * PAST)
    stacked, full = d.tensor(((PAST + 1) * CHANNELS,)), d.tensor((), "bool")
    add(d, "SignalStacker", [logs], [stacked, full], num_channels=CHANNELS,
        stacker_left_context=PAST, stacker_right_context=0, stacker_step=1)  # fmt: skip
    features = quantised(d, stacked)
    data = d.builder.file([x], [features, past, noise, bits, full])
    sounds = sound(runs).reshape(runs, 1, STEP)
    return Case(data, [sounds[0]], 5, [[part] for part in sounds[1:]])


def quantised(d: Draft, value: int) -> int:
    """Logarithms as int8: 256 steps of 666 / 256 each, from -128 on."""
    shape = ((PAST + 1) * CHANNELS,)
    wide = d.tensor(shape, "int32")
    d.builder.operator("CAST", [value], [wide])
    for kind, number, table in (
        ("MUL", 256, "MulOptions"), ("ADD", 333, "AddOptions"), ("DIV", 666, "DivOptions"),
        ("ADD", -128, "AddOptions"), ("MAXIMUM", -128, ""), ("MINIMUM", 127, ""),
    ):  # fmt: skip
        after = d.tensor(shape, "int32")
        d.builder.operator(kind, [wide, d.constant([number])], [after], table)
        wide = after
    narrow = d.builder.tensor(shape, "int8", [2.6], [-128])
    d.builder.operator("CAST", [wide], [narrow])
    return narrow


def sound(runs: int) -> np.ndarray:
    """Silence, a chirp in noise that grows until it clips, and two silent runs in it; int16."""
    rng, time = np.random.default_rng(3), np.arange(runs * STEP) / 16000
    loud = np.where(time < 2 * STEP / 16000, 0, 2.0 ** (time / time[-1] * 20))
    wave = loud * (np.sin(2 * np.pi * (200 + 6000 * time) * time) + rng.normal(0, 0.1, time.size))
    wave[-4 * STEP : -2 * STEP] = 0
    return np.clip(wave, -(1 << 15), (1 << 15) - 1).astype(np.int16)
