"""Bugs in the readers of TensorFlow Lite and ONNX, and in what models keep from run to run."""

from __future__ import annotations

from vdla.compiler import batches
from vdla.compiler.frontends.onnx import control as onnx_control
from vdla.compiler.frontends.onnx import narrow
from vdla.compiler.frontends.onnx.ops import (
    linear,
    microsoft,
    ordering,
    regions,
    resize,
    scatter,
    spectral,
)
from vdla.compiler.frontends.onnx.ops import recurrent as onnx_recurrent
from vdla.compiler.frontends.tflite import file, sparse, state
from vdla.compiler.frontends.tflite.audio import features, fourier, streams
from vdla.compiler.frontends.tflite.graph import Call
from vdla.compiler.frontends.tflite.ops import (
    arithmetic,
    control,
    decode,
    detection,
    elementwise,
    lstm,
    normalization,
    rnn,
    slicing,
    softmax,
    svdf,
    weights,
)
from vdla.compiler.frontends.tflite.ops import linear as tflite_linear
from vdla.compiler.frontends.tflite.ops import spectral as tflite_spectral
from vdla.compiler.graph.passes.fuse_qdq import QdqFusion
from vdla.compiler.graph.passes.split_batch import split_batch
from vdla.compiler.quantize import damage, smooth
from vdla.compiler.quantize import functions as steps
from vdla.compiler.quantize.calibrate import Range
from vdla.compiler.quantize.plan import _is_addend
from vdla.compiler.quantize.prepare import _gemm_of, flatten_products
from vdla.compiler.quantize.weights import Scale
from vdla.runtime.executable import Executable

from .checks import tests
from .plant import Check, Mutant

_TFLITE = "compiler/frontends/tflite"
_ONNX = "compiler/frontends/onnx"
_BATCHES = "compiler/test_batches.py"
_QUANTIZE = "compiler/quantize/test_quantize"
_CONVERTED = f"{_TFLITE}/test_tflite_converted.py"
_STATE = f"{_TFLITE}/test_tflite_state.py"


def _single(kind: str) -> Check:
    """The cases of an operator of TensorFlow Lite against Micro's kernels."""
    return tests(f"{_TFLITE}/test_every_operator.py::test_operator_is_what_the_table_says[{kind}]")


def _suite(kind: str) -> Check:
    """ONNX's own cases of an operator."""
    return tests(f"compiler/test_onnx_backend.py::test_onnx_node_tests[{kind}]")


_ROWS = (
    # ---- state
    ("state is not held", Executable.run, "self._held.update(", "print(",
     tests(f"{_STATE}::test_several_batches_are_a_sequence")),
    ("a reset leaves the state", Executable.reset, "self._held.clear()", "pass",
     tests(f"{_STATE}::test_targets_keep_state")),
    ("a state begins at zero", state.initial_value, 'like.dtype == "int8" and', "False and",
     tests(f"{_STATE}::test_targets_keep_state")),
    ("an assigned state is a constant", state.Variables.finish,
     "self.current[key] == name", "True", tests(f"{_STATE}::test_targets_keep_state")),
    ("images of a batch share a state", split_batch, "if graph.states:", "if False:",
     tests(f"{_STATE}::test_a_batch_of_the_file_is_not_cut")),
    # ---- sounds
    ("the lowest number is the loudest", features._fft_auto_scale,
     "end.equal(-1) | ((end < p) & ((v >= 0) | falls))", "p >= 0", _single("SignalFftAutoScale")),
    ("a root is rounded down", features._square_root, "(r < v - r * r) & (r < most)", "v < r",
     _single("SignalFilterBankSquareRoot")),
    ("noise is never clamped", features._spectral_subtraction, "bounded if clamping else noise",
     "noise", _single("SignalFilterBankSpectralSubtraction")),
    ("a band counts for the next channel only", features._filter_bank,
     "matrix[at : at + width, channel] += rising", "matrix[at : at + width, channel + 1] += rising",
     _single("SignalFilterBank")),
    ("a stack is valid in every run", streams._stacker, "select(n >= depth, n - step, n)", "n",
     _single("SignalStacker")),
    ("a buffer keeps the oldest elements", streams._joined, "joined, 1, size, length",
     "joined, 1, 0, length", _single("SignalDelay")),
    ("an inverse transform is none", fourier._Transform._of_four, "(place == 1) != self.inverse",
     "place == 1", _single("SignalIrfft")),
    ("integers are not divided before a stage", fourier._Numbers.divided, "if not self.whole",
     "if True", _single("SignalRfft")),
    ("phases are rounded otherwise", fourier._Transform._phases, "* steps / self.count",
     "* (steps / self.count)",
     tests(f"{_TFLITE}/test_tflite_signals.py::test_roots_of_one_are_rounded_as_the_kernel_does")),
    ("all channels have the table of the first", decode._from_table, " + stride * channels", "",
     _single("TFLM_DECODE")),
    ("what is set before the first run is lost", control._call_once,
     "variables.initial[key] = data", "pass", _single("CALL_ONCE")),
    ("both branches assign", control._merged, "values[0] != values[1]", "False",
     tests(f"{_STATE}::test_only_the_branch_that_is_taken_assigns")),
    ("a loop ends a step early", control._while, "if not verdict[0]", "if step or not verdict[0]",
     _single("WHILE")),
    # ---- recurrent operators
    ("the memory of a filter is not shifted", svdf._svdf,
     "part(state, 2, 1, memory - 1)", "part(state, 2, 0, memory - 1)",
     _single("SVDF")),
    ("a gate without its bias", lstm._IntegerLstm.gates, "acc + other if first else acc", "acc",
     _single("UNIDIRECTIONAL_SEQUENCE_LSTM")),
    ("the cell is not clipped", lstm._IntegerLstm.cell, "if clip > 0", "if False",
     _single("UNIDIRECTIONAL_SEQUENCE_LSTM")),
    ("the cell's scale off by a bit", lstm._IntegerLstm.hidden, "int(exponent) - 1",
     "max(int(exponent) - 2, -15)", _single("UNIDIRECTIONAL_SEQUENCE_LSTM")),
    ("the hidden state is not kept", lstm._IntegerLstm.run,
     "keep(call, _HIDDEN_STATE, hidden)", "pass",
     _single("UNIDIRECTIONAL_SEQUENCE_LSTM")),
    ("a peephole is closed", lstm._Lstm._gate, "x + c * w", "x",
     tests(f"{_CONVERTED}::test_recurrent_layer")),
    ("both directions go forward", rnn.TimeSteps.steps, "range(count)[::-1]", "range(count)",
     tests(f"{_CONVERTED}::test_recurrent_layer")),
    ("blocks of a sparse constant have one element", sparse.places_of, "* sizes[i]", "* 1",
     tests(f"{_CONVERTED}::test_sparse_constant")),
    ("shapes that the file guesses are believed", Call.fits, "if size != -1", "",
     tests(f"{_CONVERTED}::test_converted_file")),
    # ---- integers
    ("multipliers of 16 bits have 17", weights.reduced, ">> 16", ">> 15", _single("CONV_2D")),
    ("sums of 64 bits are cut off", weights.scaled, "(acc * factor + half)", "(acc * factor)",
     _single("FULLY_CONNECTED")),
    ("Newton's method without three halves", normalization._newton, "THREE_HALVES", "1 << 28",
     _single("L2_NORMALIZATION")),
    ("sigmoid of int16 a step off", elementwise.logistic16, "+ (1 << 9) - 1)", "+ (1 << 9))",
     _single("LOGISTIC")),
    ("halves of bytes change places", file._unpacked, "raw & 15, raw >> 4", "raw >> 4, raw & 15",
     tests(f"{_TFLITE}/test_tflite_beyond.py::test_weights_of_4_bits_are_exact")),
    ("all rows have the scale of the first", tflite_linear._dense_hybrid, "np.broadcast_to(scales,",
     "np.broadcast_to(scales[:1],",
     tests(f"{_TFLITE}/test_tflite_hybrid.py::test_a_scale_for_each_row_of_a_dense_layer")),
    ("all gates have the scale of the first", rnn.gate_weights,
     "call.operand(p).scale", "call.operand(positions[0]).scale",
     tests(f"{_TFLITE}/test_tflite_hybrid.py::test_memories_differ_in_last_bits")),
    ("floors are cut off", arithmetic._floor_div, "inexact & differ", "inexact & False",
     tests(f"{_TFLITE}/test_tflite_beyond.py::test_operator_against_numpy[floor_div]")),
    ("an ellipsis stands for nothing", slicing._entries, "axis += rank - len(places)", "pass",
     tests(f"{_TFLITE}/test_tflite_files.py::test_slices_are_numpys")),
    ("of two ways to take a logarithm the worse", softmax._logarithm,
     'rest = call.map(minimum', 'rest = call.map(maximum', _single("LOG_SOFTMAX")),
    ("objects of other classes are dropped", detection._detect,
     "& k.equal(kind)", "", tests(f"{_TFLITE}/test_tflite_detection.py")),
    ("columns are not transformed", tflite_spectral._rfft2d, "if lengths[0] > 1:", "if False:",
     tests(f"{_TFLITE}/test_tflite_beyond.py::test_transforms_against_numpy")),
    # ---- ONNX
    ("the other branch is taken", onnx_control.run_if, 'call.scalar(0, "condition") else',
     'not call.scalar(0, "condition") else',
     tests(f"{_ONNX}/test_onnx_control.py::test_subgraphs_are_what_onnx_runtime_computes")),
    ("halves are not rounded", narrow.in_range, "x.astype(kind).astype", "x.astype",
     tests(f"{_ONNX}/test_onnx_control.py::test_every_half_is_rounded_as_numpy_does")),
    ("of equal elements the last comes first", ordering._top_k,
     "places.reshape(1, -1) < places", "places.reshape(1, -1) > places", _suite("TopK")),
    ("updates of a place count once", scatter._gathered, "turns[m] = seen[place]", "turns[m] = 0",
     _suite("Col2Im")),
    ("a circular cache is not one", scatter._tensor_scatter, 'if mode == "circular"', "if False",
     _suite("TensorScatter")),
    ("the imaginary part has the other sign", spectral._roots, "else -np.sin(angles)",
     "else np.sin(angles)", _suite("DFT")),
    ("a mirror image is the result itself", spectral._summed, "_minus(*_halves", "_plus(*_halves",
     _suite("DFT")),
    ("an inverse transform is of float64", spectral._transformed, "fitted if inverse else", "",
     _suite("DFT")),
    ("half types are rounded at the end of a softmax", narrow.rounds_inside, "return defined and",
     "return False and", tests(f"{_ONNX}/test_node_suite.py")),
    ("boxes that touch the limit are dropped", regions._kept, "> overlap", ">= overlap",
     _suite("NonMaxSuppression")),
    ("samples outside count", regions._weights,
     "select(outside, number(0, place), weight)", "weight",
     tests(f"{_ONNX}/test_onnx_regions.py::test_boxes_outside_of_the_image")),
    ("a swap of rows keeps the sign", linear._det, "number(0, p) - p", "p", _suite("Det")),
    ("alpha does not multiply a bias", microsoft._gemm, " * number(alpha, a)", "",
     tests(f"{_ONNX}/test_ort_quantised.py::test_gemm")),
    ("a state has the scale of inputs", onnx_recurrent._weight, "_SCALES + 2 * which", "_SCALES",
     tests(f"{_ONNX}/test_ort_quantised.py::test_dynamic_lstm")),
    ("means of integers are rounded", resize._as_integers, '"trunc"', '"round"',
     tests(f"{_ONNX}/test_ort_quantised.py::test_means_of_resized_integers")),
    # ---- sizes that are left open
    ("elements of several images are taken for apart", batches._axis,
     "shape[lies.axis] != IMAGES * lies.each", "False",
     tests(f"{_BATCHES}::test_images_that_are_not_are_compiled_together[apart in an output]")),
    ("constants that differ from image to image are not seen", batches._Proof.expect_same,
     "all(_equal(first, part) for part in (*parts, *twins))", "True",
     tests(f"{_BATCHES}::test_images_that_are_not_are_compiled_together[places in the batch]")),
    # ---- the quantiser
    ("a step that others read is not stored", steps._ends, "sources.get(p) != sources[place] for",
     "False for", tests(f"{_QUANTIZE}_tokens.py::test_functions_of_one_tensor")),
    ("a number goes into weights that others read", _gemm_of, "readers[name] == 1 and", "True and",
     tests(f"{_QUANTIZE}_tokens.py::test_a_number_goes_into_weights")),
    ("a factor for each channel leaves the bias as it is", flatten_products,
     "bias * scaled[1]", "bias",
     tests(f"{_QUANTIZE}_tokens.py::test_a_factor_for_each_channel_goes_into_the_weights")),
    ("a balanced range has no zero point 0", Range.balanced, " * 128 / 127", "",
     tests(f"{_QUANTIZE}_tokens.py::test_a_range_is_balanced_where_that_widens_it_little")),
    ("a constant for each channel is rounded to int8", _is_addend,
     "and prod(value.shape[:-1]) > 1", "",
     tests(f"{_QUANTIZE}_tokens.py::test_other_addends_are_not_rounded")),
    ("a mask is rounded to int8", _is_addend,
     "is_bias or not _is_in_softmax(draft, node.output[0])", "True",
     tests(f"{_QUANTIZE}_tokens.py::test_masks_are_not_rounded")),
    ("positions are stored without their zero point", Scale.stored, " + self.zero_point", "",
     tests(f"{_QUANTIZE}_tokens.py::test_positions_are_added_in_integers")),
    ("positions are not repeated for each image", QdqFusion.addend, "known[1:] != shape[1:]",
     "True", tests(f"{_QUANTIZE}_tokens.py::test_positions_of_a_batch")),
    ("weights of float nodes are rounded", damage._Gates.gate_operands,
     "node.input[1] = self.selected(head, known, node.input[1], node)", "node.input[1] = known",
     tests(f"{_QUANTIZE}_damage.py::test_gates_are_the_quantised_model")),
    ("nodes go back on integers unasked", damage.Damage.chosen, "others if is_enough(others)",
     "others if True", tests(f"{_QUANTIZE}_damage.py::test_only_what_must_stays_float")),
    ("all groups have the factors of the first", smooth._multiply, "parts * column",
     "parts * column[:1]", tests(f"{_QUANTIZE}_smooth.py::test_the_float_model_stays_the_same")),
    ("a residual reads what is smoothed", smooth._own_producer,
     "len(direct) == len(pair.readers)", "True",
     tests(f"{_QUANTIZE}_smooth.py::test_the_float_model_stays_the_same")),
)  # fmt: skip
FRONTENDS = tuple(Mutant(name, "compiler", *rest) for name, *rest in _ROWS)  # pyright: ignore
