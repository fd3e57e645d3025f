"""Corrupted model files, compiled in processes of bounded memory: an error line each, no crash, no
hang, and no other file is opened.

60 files, always the same ones; as many others as ``VDLA_FUZZ`` says, if set (``make fuzz``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from .onnx.cases.draw import Draw
from .onnx.test_onnx_control import MODELS, model_of
from .onnx.test_single_operators import OPERATORS
from .tflite.recurrent_cases import recurrent_case
from .tflite.single.table import ROWS, TYPES, draw
from .tflite.test_tflite_converted import CONVERTED, NAMES, sparse_file
from .tflite.tflite_cases import CASES

FILES = int(os.environ.get("VDLA_FUZZ", "60"))
SEED = 0 if "VDLA_FUZZ" not in os.environ else int.from_bytes(os.urandom(4), "little")
#: A line that a terminal shows whole.
LONGEST = 400
WILD = (0, -1, 1, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), 65536, 10**6)
HALVES = ("float", "float16", "bfloat16")
ELSEWHERE = ("../secret.bin", "/etc/passwd", "sub/../../secret.bin", "secret.bin\0x", "~", ".", "")


def damaged_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    """The file cut off, with flipped bits, or with wild numbers."""
    changed = bytearray(data)
    match rng.integers(3):
        case 0:
            return data[: rng.integers(len(data))]
        case 1:
            for _ in range(rng.integers(1, 20)):
                changed[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        case _:
            for _ in range(rng.integers(1, 4)):
                at = int(rng.integers(len(data) // 4)) * 4
                wild = int(rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(data)]))
                changed[at : at + 4] = wild.to_bytes(4, "little")
    return bytes(changed)


def damaged_model(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """The model with wild sizes, wild attributes, or a constant that lies in another file."""
    nodes = [*model.graph.node, *(n for node in model.graph.node for n in inner(node))]
    node = nodes[rng.integers(len(nodes))]
    constants = model.graph.initializer or [TensorProto()]
    constant = constants[rng.integers(len(constants))]
    wild = int(rng.choice(np.array(WILD, object)))
    lists = [a for a in node.attribute if a.ints]
    match rng.integers(5):
        case 0:
            for value in model.graph.input[:1]:
                for size in value.type.tensor_type.shape.dim[:4]:
                    if rng.integers(2):
                        size.dim_value = wild
        case 1 if lists:
            chosen = lists[rng.integers(len(lists))].ints
            chosen[rng.integers(len(chosen))] = wild
        case 2 if constant.dims:
            constant.dims[rng.integers(len(constant.dims))] = wild
        case 3:
            constant.ClearField("raw_data")
            constant.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", ELSEWHERE[rng.integers(len(ELSEWHERE))]),
                ("offset", str(abs(wild))), ("length", str(abs(wild))),
            ):  # fmt: skip
                constant.external_data.add(key=key, value=value)
        case _:
            node.ClearField("attribute")
            node.op_type = nodes[rng.integers(len(nodes))].op_type
    return model


def inner(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The nodes of a node's subgraphs, and of theirs."""
    found = [n for attribute in node.attribute for n in attribute.g.node]
    return [*found, *(n for child in found for n in inner(child))]


def growing() -> onnx.ModelProto:
    """A few bytes that ask for gigabytes."""
    shape = helper.make_tensor("shape", TensorProto.INT64, [3], [40_000, 40_000, 1])
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Add", ["zeros", "x"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
    graph = helper.make_graph(nodes, "growing", [x], [y], [shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def onnx_model(rng: np.random.Generator, networks: list[bytes]) -> bytes:
    """A network, a node with subgraphs, of floats or of a half type, or a model of one operator."""
    match rng.integers(3):
        case 0:
            return networks[rng.integers(len(networks))]
        case 1:
            text, kind = (
                MODELS[sorted(MODELS)[rng.integers(len(MODELS))]][0],
                HALVES[rng.integers(3)],
            )
            code = TensorProto.DataType.Value(kind.upper())
            text = text.replace("float[", f"{kind}[").replace("to = 1>", f"to = {code}>")
            return model_of(text).SerializeToString()
        case _:
            kind = sorted(OPERATORS)[rng.integers(len(OPERATORS))]
            return OPERATORS[kind](Draw(str(rng.integers(1000)))).model().SerializeToString()


def tflite_model(rng: np.random.Generator) -> bytes:
    """A network, a file of another converter, recurrent layers, or a model of one operator."""
    number = int(rng.integers(1000))
    match rng.integers(6):
        case 0:
            return CONVERTED[f"{NAMES[number % len(NAMES)]}:file"].tobytes()
        case 1:
            return recurrent_case(number)[0]
        case 2:
            return sparse_file()[0]
    if rng.integers(2):
        names = sorted(CASES)
        return CASES[names[rng.integers(len(names))]]()[0]
    kinds = sorted(ROWS)
    kind = kinds[rng.integers(len(kinds))]
    return draw(kind, TYPES[rng.integers(len(TYPES))], number).data


def write_files(folder: Path, models: Path, count: int) -> None:
    """Corrupted ONNX and TensorFlow Lite files, and beside the folder what none may read."""
    rng = np.random.default_rng(SEED)
    (folder.parent / "secret.bin").write_bytes(bytes(1 << 16))
    networks = [(models / n).read_bytes() for n in ("digits_int8.onnx", "digits_float.onnx")]
    for i in range(count):
        kind = rng.integers(3)
        if kind == 0:
            data = damaged_bytes(tflite_model(rng), rng)
            (folder / f"{i:05d}.tflite").write_bytes(data)
            continue
        data = onnx_model(rng, networks)
        if kind == 1:
            data = damaged_bytes(data, rng)
        else:
            data = damaged_model(onnx.load_from_string(data), rng).SerializeToString()
        (folder / f"{i:05d}.onnx").write_bytes(data)
    (folder / "growing.onnx").write_bytes(growing().SerializeToString())


@pytest.mark.more
@pytest.mark.slow
def test_corrupted_files(tmp_path: Path, models: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    write_files(folder, models, FILES)
    script = Path(__file__).with_name("compile_files.py")
    environment = os.environ | {"VDLA_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, script, folder], capture_output=True, text=True, env=environment
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    what = f"seed {SEED}, after {outcomes[-1:]}: {done.stderr[-2000:]}"
    assert done.returncode == 0 and len(outcomes) == FILES + 1, what
    for outcome in outcomes:
        what = f"seed {SEED}: {outcome}"
        assert outcome["outcome"] in ("made", "refused"), what
        assert "\n" not in outcome["message"] and len(outcome["message"]) < LONGEST, what
        assert not outcome["strangers"], what
    refused = sum(outcome["outcome"] == "refused" for outcome in outcomes)
    assert refused > FILES / 3
