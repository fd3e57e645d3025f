"""Operators on sounds: whole front ends against TensorFlow Lite Micro, states, and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import vdla
from vdla.compiler.frontends.tflite.audio.fourier import factors
from vdla.compiler.frontends.tflite.importer import import_tflite
from vdla.compiler.graph.interpret import interpret_runs
from vdla.isa.errors import VdlaError

from .signal_models import CHANNELS, front_end
from .single.draft import Case, Draft, micro
from .single.signals import CODES, finished, packed
from .single.table import draw
from .tflite_builder import TfliteBuilder

RUNS = 8
STREAMS = (
    "CIRCULAR_BUFFER", "SignalDelay", "SignalFilterBankSpectralSubtraction", "SignalFramer",
    "SignalOverlapAdd", "SignalStacker",
)  # fmt: skip


def sequence(case: Case) -> list[list[np.ndarray]]:
    return [case.inputs, *case.later]


@pytest.fixture(scope="module")
def sound() -> Case:
    return front_end(RUNS)


@pytest.fixture(scope="module")
def expected(sound: Case) -> list[list[np.ndarray]]:
    pytest.importorskip("tflite_micro")
    found = micro(sound)
    return [found[i : i + sound.outputs] for i in range(0, len(found), sound.outputs)]


def test_a_front_end_is_that_of_micro(sound: Case, expected: list[list[np.ndarray]]) -> None:
    """From sound to features of int8, over runs whose states follow each other."""
    graph = import_tflite(sound.data)
    for made, wanted in zip(interpret_runs(graph, *sequence(sound)), expected, strict=True):
        for y, z in zip(made, wanted, strict=True):
            assert y.dtype == z.dtype
            np.testing.assert_array_equal(y, z)
    features = np.stack([outputs[0][-CHANNELS:] for outputs in expected])
    assert len(np.unique(features)) > 80  # the sound is neither silent nor clipped everywhere
    assert len({int(outputs[3]) for outputs in expected}) > 3


@pytest.mark.slow
def test_a_front_end_on_the_cpu(
    sound: Case, expected: list[list[np.ndarray]], tmp_path: Path
) -> None:
    """Compiled, reset, saved and loaded."""
    module = vdla.compile(sound.data, "cpu")
    module.run(*sound.later[-1])
    module.save(tmp_path / "saved")
    module.reset()
    for again in (module, vdla.load(tmp_path / "saved")):
        for inputs, wanted in zip(sequence(sound), expected, strict=True):
            for y, z in zip(again.run(*inputs), wanted, strict=True):
                np.testing.assert_array_equal(y, z)


def typed(kind: str) -> str:
    """The type of a kind's first operand."""
    return {"CIRCULAR_BUFFER": "int8", STREAMS[2]: "uint32"}.get(kind, "int16")


@pytest.mark.fast(2)
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize(
    "options", [{"target": "sim", "hw": "8x8"}, {"target": "cuda", "emulate": True}], ids=str
)
def test_targets_keep_streams(kind: str, options: dict) -> None:
    case = draw(kind, typed(kind), 1)
    wanted = interpret_runs(import_tflite(case.data), *sequence(case))
    module = vdla.compile(case.data, **options)
    for _ in range(2):
        for inputs, outputs in zip(sequence(case), wanted, strict=True):
            for y, z in zip(module.run(*inputs), outputs, strict=True):
                np.testing.assert_array_equal(y, z)
        module.reset()


@pytest.mark.parametrize(
    ("count", "stages"), [(256, [4] * 4), (8, [4, 2]), (60, [4, 3, 5]), (7, [7])]
)
def test_stages_of_transforms(count: int, stages: list[int]) -> None:
    assert factors(count) == stages


@pytest.mark.parametrize("count", [36, 72, 180])
def test_roots_of_one_are_rounded_as_the_kernel_does(count: int) -> None:
    """The cosine of a sixth of a turn lies in the middle between two int16."""
    pytest.importorskip("tflite_micro")
    d = Draft(np.random.default_rng(count), "int16")
    x, y = d.x((20, 2 * count + 2)), d.tensor((20, 2 * count))
    case = finished(d, "SignalIrfft", [x], [y], fft_length=2 * count, T=CODES["int16"])
    [[made]] = interpret_runs(import_tflite(case.data), case.inputs)
    np.testing.assert_array_equal(made, micro(case)[0])


def test_a_transform_is_one() -> None:
    """The float transform is NumPy's, up to the last bits."""
    d = Draft(np.random.default_rng(1), "float32")
    case = finished(d, "SignalRfft", [d.x((3, 120))], [d.tensor((3, 122))], fft_length=120,
                    T=CODES["float32"])  # fmt: skip
    [[made]] = interpret_runs(import_tflite(case.data), case.inputs)
    wanted = np.fft.rfft(case.inputs[0].astype(np.float64))
    np.testing.assert_allclose(made[:, ::2] + 1j * made[:, 1::2], wanted, atol=1e-4)


# ---- refusals ------------------------------------------------------------------------------------


def refused(data: bytes) -> str:
    with pytest.raises(VdlaError) as error:
        import_tflite(data)
    assert "\n" not in str(error.value)
    return str(error.value)


def model(kind: str, shape: tuple[int, ...], dtype: str, own: bytes, results: int = 1) -> bytes:
    """One operator with one operand, and results of its type and shape."""
    b = TfliteBuilder()
    x, *made = (b.tensor(shape, dtype) for _ in range(results + 1))
    b.operator(kind, [x], made, own=own)
    return b.file([x], made)


@pytest.mark.parametrize(
    ("kind", "dtype", "results", "options", "why"),
    [
        ("SignalDelay", "int16", 1, {"delay": 3}, "option 'delay_length' from 0 to 1048576, got"),
        ("SignalDelay", "int16", 1, {"delay_length": -1}, "from 0 to 1048576, got -1"),
        ("SignalDelay", "int32", 1, {"delay_length": 1}, "supported are int16, got int32"),
        ("SignalFramer", "int16", 2, {"frame_size": 2, "frame_step": 3, "prefill": True},
         "frames of 2 by steps of 3 do not fit rows of 6"),
        ("SignalStacker", "int16", 2, {"num_channels": 6, "stacker_left_context": 1,
                                       "stacker_right_context": 0, "stacker_step": 3},
         "steps of 1 to 2 frames, got [1, 6] and 3"),
        ("SignalRfft", "int16", 1, {"T": 7, "fft_length": 14}, "of 2, 3 and 5 only, got 14"),
        ("SignalRfft", "int16", 1, {"T": 7, "fft_length": 4}, "at most 4 elements, got 6"),
        ("SignalIrfft", "int16", 1, {"T": 7, "fft_length": 8}, "expected 10 elements, got 6"),
        ("SignalEnergy", "int16", 1, {"start_index": 2, "end_index": 2}, "got 2 to 2"),
        ("SignalFilterBankLog", "uint32", 1, {"output_scale": 64, "input_correction_bits": 32},
         "'input_correction_bits' from 0 to 31, got 32"),
        ("SignalFftAutoScale", "int16", 1, {}, "expected 2 results, got 1"),
        ("SignalWindow", "int16", 1, {"shift": 12}, "input 1 is missing"),
    ],
)  # fmt: skip
def test_refusals(kind: str, dtype: str, results: int, options: dict, why: str) -> None:
    assert why in refused(model(kind, (6,), dtype, packed(options), results))


def test_a_circular_buffer_that_would_end_a_run_is_refused() -> None:
    data = model("CIRCULAR_BUFFER", (1, 1, 1, 4), "int8", packed({"cycles_max": 2}))
    assert "'cycles_max' of 1, or more with a second result, got 2" in refused(data)


@pytest.mark.parametrize("own", [b"", b"\xff\xff\xff", b"\x00\x01\x02", packed({"a": 1})[:-1]])
def test_damaged_options(own: bytes) -> None:
    assert "operator 0 (SignalDelay): its options are damaged" in refused(
        model("SignalDelay", (6,), "int16", own)
    )


def test_a_band_beyond_the_spectrum_is_refused() -> None:
    d = Draft(np.random.default_rng(1), "uint32")
    weights = [d.constant(np.ones(4), "int16") for _ in range(2)]
    bands = [d.constant(values, "int16") for values in ([0, 3], [0, 0], [2, 4])]
    case = finished(d, "SignalFilterBank", [d.x((6,)), *weights, *bands],
                    [d.tensor((1,), "uint64")], num_channels=1)  # fmt: skip
    assert "band 1 of 4 elements from 3 on" in refused(case.data)
