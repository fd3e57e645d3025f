"""A Llama in the forms that people have as ONNX, against transformers and ONNX Runtime.

``golden/decoders.npz`` holds what torch.onnx (torch 2.13) writes of transformers' 5.24 Llama, by
either of its exporters and with a static cache, and the logits that transformers computes;
``export_decoders.py`` made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import vdla
from onnx import TensorProto, helper, numpy_helper
from vdla.bench.distance import distances
from vdla.cli import run_app
from vdla.compiler.graph.ops.integer import QTable
from vdla.isa.params import HwParams

from .decoder_models import (
    CONTEXT,
    HEAD_WIDTH,
    KV_HEADS,
    ROWS,
    STATES,
    genai_model,
    random_weights,
)
from .export_decoders import GOLDEN, with_weights

KEPT = np.load(GOLDEN)
TOKENS, LOGITS = KEPT["tokens"], KEPT["logits"][0]
WEIGHTS = random_weights()
#: A head's halves are blocks of 8 channels; tables on the accelerator.
HW = HwParams(block_in=8, block_out=8, vector_table=2)
Arrays = dict[str, np.ndarray]


def grown(form: str) -> onnx.ModelProto:
    return with_weights(KEPT[form].tobytes(), WEIGHTS)


def grown_dims(model: onnx.ModelProto, places: int, rows: int) -> dict[str, int]:
    """The sizes of a cache of so many places, and of a run of so many tokens."""
    [mask] = [v for v in model.graph.input if v.name == "attention_mask"]
    total = mask.type.tensor_type.shape.dim[1].dim_param
    return {"past_sequence_length": places, "sequence_length": rows, total: places + rows}


def grown_runs(places: int, rows: int, tokens: np.ndarray = TOKENS) -> Iterator[Arrays]:
    """The inputs of each run, without caches. Tokens of the first one may be padding."""
    padding = -tokens.shape[1] % rows
    tokens = np.pad(tokens, ((0, 0), (padding, 0)))
    for start in range(0, tokens.shape[1], rows):
        own = np.arange(start - places, start + rows)
        positions = np.maximum(own[-rows:] - padding, 0)
        yield {
            "input_ids": tokens[:, start : start + rows],
            "attention_mask": (own >= padding)[None].astype(np.int64),
            "position_ids": positions[None],
        }


def genai_dims(rows: int) -> dict[str, int]:
    lengths = dict.fromkeys(("past_sequence_length", "total_sequence_length"), CONTEXT)
    return lengths | {"sequence_length": rows}


def genai_runs(rows: int, tokens: np.ndarray = TOKENS) -> Iterator[Arrays]:
    """The mask has the places of the whole cache."""
    for start in range(0, tokens.shape[1], rows):
        mask = (np.arange(CONTEXT) < start + rows)[None].astype(np.int64)
        yield {"input_ids": tokens[:, start : start + rows], "attention_mask": mask}


def logits(module: vdla.Module, runs: Iterator[Arrays]) -> np.ndarray:
    return np.concatenate([module.run(given)[0][0] for given in runs])


def with_caches(
    compute: Callable[[Arrays], Mapping[str, np.ndarray]], runs: Iterator[Arrays], places: int
) -> Iterator[tuple[Arrays, Mapping[str, np.ndarray]]]:
    """Inputs with the caches that the run before leaves, and outputs, of each run."""
    caches = {n: np.zeros((1, KV_HEADS, places, HEAD_WIDTH), np.float32) for n in STATES}
    for given in runs:
        made = compute(given | caches)
        yield given | caches, made
        caches = {name: made[after][:, :, -places:] for name, after in STATES.items()}


def peer(model: onnx.ModelProto) -> Callable[[Arrays], Mapping[str, np.ndarray]]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [value.name for value in session.get_outputs()]
    return lambda given: dict(zip(names, session.run(None, given), strict=True))


# ---- float ----


@pytest.mark.parametrize("rows", [1, 7, ROWS])
@pytest.mark.parametrize("form", ["attention", "dynamo", "script"])
def test_caches_that_grow(form: str, rows: int) -> None:
    """Block by block, the first of which begins with padding, it is transformers' whole
    sequence."""
    model = grown(form)
    dims = grown_dims(model, CONTEXT, rows)
    module = vdla.compile(model, "cpu", states=STATES, dims=dims)
    assert [t.name for t in module.inputs] == ["input_ids", "attention_mask", "position_ids"]
    assert [t.name for t in module.outputs] == ["logits"]
    got = logits(module, grown_runs(CONTEXT, rows))[-len(LOGITS) :]
    np.testing.assert_allclose(got, LOGITS, rtol=0, atol=1e-5)


def test_the_oldest_places_are_dropped() -> None:
    """As if the caller handed on the last places; ONNX Runtime computes that."""
    places, model = 12, grown("dynamo")
    dims = grown_dims(model, places, 4)
    module = vdla.compile(model, "cpu", states=STATES, dims=dims)
    got = logits(module, grown_runs(places, 4))
    runs = with_caches(peer(model), grown_runs(places, 4), places)
    wanted = np.concatenate([made["logits"][0] for _, made in runs])
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)
    assert np.abs(got[-8:] - LOGITS[-8:]).max() > 0.01


@pytest.mark.parametrize("rows", [1, ROWS])
def test_operators_of_genai(rows: int) -> None:
    module = vdla.compile(genai_model(WEIGHTS), "cpu", states=STATES, dims=genai_dims(rows))
    got = logits(module, genai_runs(rows))
    np.testing.assert_allclose(got, LOGITS, rtol=0, atol=1e-5)


def test_weights_of_four_bits() -> None:
    model = genai_model(WEIGHTS, bits=4)
    module = vdla.compile(model, "cpu", states=STATES, dims=genai_dims(ROWS))
    runs = with_caches(peer(model), genai_runs(ROWS), CONTEXT)
    wanted = np.concatenate([made["logits"][0] for _, made in runs])
    np.testing.assert_allclose(logits(module, genai_runs(ROWS)), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("bits", [4, 32])
def test_half_precision(bits: int) -> None:
    """The result of each node is rounded, as ONNX Runtime does, but not in the same places."""
    model = genai_model(WEIGHTS, bits)
    for constant in model.graph.initializer:
        value = numpy_helper.to_array(constant)
        if value.dtype == np.float32:
            half = numpy_helper.from_array(value.astype(np.float16), constant.name)
            constant.CopyFrom(half)
    for tensor in (*model.graph.input, *model.graph.output):
        if tensor.type.tensor_type.elem_type == TensorProto.FLOAT:
            tensor.type.tensor_type.elem_type = TensorProto.FLOAT16
    module = vdla.compile(model, "cpu", states=STATES, dims=genai_dims(ROWS))
    compute = peer(model)

    def halves(given: Arrays) -> Mapping[str, np.ndarray]:
        return compute(
            {n: v.astype(np.float16) if v.dtype == np.float32 else v for n, v in given.items()}
        )

    runs = with_caches(halves, genai_runs(ROWS), CONTEXT)
    wanted = np.concatenate([made["logits"][0] for _, made in runs])
    np.testing.assert_allclose(logits(module, genai_runs(ROWS)), wanted, rtol=0, atol=0.03)


def static_states() -> dict[str, str]:
    """Of the file with a static cache: its inputs, but for tokens and places."""
    names = [value.name for value in grown("static").graph.input]
    return {name: f"{name}.next" for name in names if name not in ("input_ids", "cache_position")}


def static_runs(tokens: np.ndarray = TOKENS) -> Iterator[Arrays]:
    for start in range(0, tokens.shape[1], ROWS):
        places = np.arange(start, start + ROWS)
        yield {"input_ids": tokens[:, start : start + ROWS], "cache_position": places}


def test_a_static_cache() -> None:
    module = vdla.compile(grown("static"), "cpu", states=static_states())
    np.testing.assert_allclose(logits(module, static_runs()), LOGITS, rtol=0, atol=1e-5)


# ---- int8 ----


@pytest.mark.slow
@pytest.mark.short(2)
@pytest.mark.parametrize("form", ["attention", "static", "dynamo", "genai", "script"])
def test_int8_is_one_program(form: str) -> None:
    """Its caches are int8; the accelerator and the CPU agree to the bit; each operator is as ONNX
    defines it, but for less than one in a hundred elements, by one step."""
    dims: dict[str, int] = {}
    model, states = (genai_model(WEIGHTS, bits=4) if form == "genai" else grown(form)), STATES
    if form == "genai":
        dims, runs = genai_dims(ROWS), partial(genai_runs, ROWS)
    elif form == "static":
        states, runs = static_states(), static_runs
    else:
        dims = grown_dims(model, CONTEXT - ROWS, ROWS)
        runs = partial(grown_runs, CONTEXT - ROWS, ROWS)
    given = [*runs(TOKENS[:, ::-1])]
    samples = {name: np.concatenate([one[name] for one in given]) for name in given[0]}
    made = vdla.quantize(model, samples, states=states, dims=dims)
    compiled = partial(vdla.compile, hw=HW, states=states)
    by_sim, by_cpu = (compiled(made.model, target) for target in ("sim", "cpu"))
    assert len(by_sim.compiled.programs) == 1
    operators = {type(node.op) for node in by_sim.compiled.graph.nodes}
    assert QTable not in operators  # factors of scores are part of other operators
    caches = [state for state in by_sim.compiled.states if state.initial.ndim == 4]
    assert {str(state.initial.dtype) for state in caches} == {"int8"}
    got = logits(by_sim, runs(TOKENS[:, :24]))
    np.testing.assert_array_equal(got, logits(by_cpu, runs(TOKENS[:, :24])))
    wanted = logits(compiled(model, "cpu", dims=dims), runs(TOKENS[:, :24]))
    assert np.square(wanted).sum() > 25 * np.square(got - wanted).sum()
    last = with_runs(vdla.compile(model, "cpu", dims=dims), states, given)[-1]
    for operator in distances(made.model, [last[value.name] for value in made.model.graph.input]):
        assert operator.largest <= 1, operator
        assert operator.counts[0] >= 0.99 * operator.elements, operator


def with_runs(module: vdla.Module, states: Mapping[str, str], runs: list[Arrays]) -> list[Arrays]:
    """The inputs of each run, with what the one before it leaves in the states."""
    names = [tensor.name for tensor in module.outputs]
    held = {t.name: np.zeros(t.shape, t.dtype) for t in module.inputs if t.name in states}
    found = []
    for given in runs:
        found.append(given | held)
        made = dict(zip(names, module.run(found[-1]), strict=True))
        held = {
            name: made[states[name]][tuple(slice(-size, None) for size in value.shape)]
            for name, value in held.items()
        }
    return found


def test_samples_are_runs_in_order() -> None:
    """The file is the same as with what a run leaves in the caches as samples of the next."""
    model = grown("dynamo")
    dims = grown_dims(model, CONTEXT - ROWS, ROWS)
    runs = [*grown_runs(CONTEXT - ROWS, ROWS, TOKENS[:, :24])]
    whole = with_runs(vdla.compile(model, "cpu", dims=dims), STATES, runs)

    def joined(runs: list[Arrays]) -> Arrays:
        return {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}

    made = vdla.quantize(model, joined(runs), states=STATES, dims=dims)
    assert made.states == STATES
    assert made.model == vdla.quantize(model, joined(whole), dims=dims).model
    with pytest.raises(vdla.VdlaError, match=r"^samples: expected none of the state 'past_key"):
        vdla.quantize(model, joined(whole), states=STATES)


# ---- how it is said, and what is refused ----


def test_states_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "llama.onnx"
    onnx.save(grown("dynamo"), path)
    sizes = grown_dims(grown("dynamo"), CONTEXT, 1)
    options = [f"--dim={name}={size}" for name, size in sizes.items()]
    options += [f"--state={before}={after}" for before, after in STATES.items()]
    assert run_app(["run", str(path), "--target", "cpu", *options]) == 0
    out = capsys.readouterr().out
    assert "output logits" in out and "output present" not in out


def test_the_quantiser_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, samples = tmp_path / "llama.onnx", tmp_path / "runs.npz"
    onnx.save(grown("attention"), path)
    runs = [*grown_runs(CONTEXT, 1, TOKENS[:, :6])]
    np.savez(samples, **{n: np.concatenate([run[n] for run in runs]) for n in runs[0]})
    sizes = grown_dims(grown("attention"), CONTEXT, 1)
    options = [f"--dim={name}={size}" for name, size in sizes.items()]
    options += [f"--state={before}={after}" for before, after in STATES.items()]
    made = ["-o", str(tmp_path / "llama8.onnx")]
    assert run_app(["quantize", str(path), "--samples", str(samples), *options, *made]) == 0
    told = " ".join(capsys.readouterr().out.split())
    pairs = " ".join(f"--state {before}={after}" for before, after in STATES.items())
    assert "on 6 batches of samples" in told and f"run it with {pairs}" in told
    assert run_app(["quantize", str(path), "--samples", str(samples), *options[-4:], *made]) == 2
    assert "past_sequence_length" in capsys.readouterr().err


def test_positions_must_be_an_input() -> None:
    """A cache of a fixed length does not say them."""
    model = grown("dynamo")
    dims = grown_dims(model, CONTEXT, 1)
    with pytest.raises(vdla.VdlaError, match=r"^states: .* positions .* got only input_ids$"):
        place = {"position_ids": np.array([[CONTEXT]])}
        vdla.compile(model, "cpu", states=STATES, dims=dims, values=place)


WRONG: dict[str, tuple[str, dict[str, object], str]] = {
    "no causes": ("GroupQueryAttention", {"causal": 0}, "supported is causal = 1, got 0"),
    "a windowed cache": (
        "GroupQueryAttention", {"sliding_window_cache": 1, "local_window_size": 8},
        "supported is sliding_window_cache = 0, got 1",
    ),
    "a cache of integers": (
        "GroupQueryAttention", {"k_quant_type": "PER_TENSOR"},
        "supported is k_quant_type = b'NONE', got b'PER_TENSOR'",
    ),
    "no heads": (
        "GroupQueryAttention", {"num_heads": None}, "a number above 0 as num_heads, got none",
    ),
    "heads of no group": (
        "GroupQueryAttention", {"kv_num_heads": 3}, "whole heads, got 64 channels of 4, 3",
    ),
    "groups of nothing": ("MatMulNBits", {"block_size": 0}, "0 as block_size, got 0"),
    "three bits": ("MatMulNBits", {"bits": 3}, "expected weights uint8 of 2, 4, 8 bits for"),
    "of other sizes": ("MatMulNBits", {"K": 64}, r"for \[64, 4, 16\], got 4 bits in uint8"),
    "packed": ("MatMulNBits", {"weight_prepacked": 1}, "supported is weight_prepacked = 0, got 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(name: str) -> None:
    kind, changes, said = WRONG[name]
    model = genai_model(WEIGHTS, bits=4)
    node = next(node for node in model.graph.node if node.op_type == kind)
    kept = [item for item in node.attribute if item.name not in changes]
    del node.attribute[:]
    made = [helper.make_attribute(n, value) for n, value in changes.items() if value is not None]
    node.attribute.extend([*kept, *made])
    with pytest.raises(vdla.VdlaError, match=f"^node '.*' \\({kind}\\): .*{said}") as error:
        vdla.compile(model, "cpu", dims=genai_dims(ROWS))
    assert "\n" not in str(error.value)


def test_operands_that_are_refused() -> None:
    model = genai_model(WEIGHTS)
    node = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    node.input.extend(["", "attention_mask"])
    with pytest.raises(vdla.VdlaError, match=r"input 10 \('attention_mask'\) is not supported"):
        vdla.compile(model, "cpu", dims=genai_dims(ROWS))


@pytest.mark.parametrize("sizes", [(2**62, 4, 8), (2**40, 0, 2**40)])
def test_operands_without_end_are_refused(sizes: tuple[int, ...]) -> None:
    """As in damaged files: rules make numbers of some dimensions."""
    table = [numpy_helper.from_array(np.ones((4, 4), np.float32), name) for name in ("cos", "sin")]
    inputs = ["x", "position", "cos", "sin"]
    node = helper.make_node("RotaryEmbedding", inputs, ["y"], "turn", domain="com.microsoft")
    ends = [
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes),
            helper.make_tensor_value_info("position", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    ]
    model = helper.make_model(helper.make_graph([node], "turn", *ends, table))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(vdla.VdlaError, match=r"^node 'turn' .*expected a tensor of at most"):
        vdla.compile(model, "cpu")
