"""A model in C: the header and the library agree, and what does not fit is refused."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
import vdla
from onnx import TensorProto, helper
from vdla.runtime import native

EXAMPLES = Path(__file__).parents[2] / "examples"
HEADER = Path(native.__file__).with_name("vdla.h")


def several_tensors() -> onnx.ModelProto:
    """Two inputs of different types; outputs: computed, computed and read again, an input."""
    nodes = [
        helper.make_node("Cast", ["b"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["a", "c"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["high"]),
    ]
    inputs = [
        helper.make_tensor_value_info("a", TensorProto.FLOAT, [2, 3]),
        helper.make_tensor_value_info("b", TensorProto.INT8, [2, 3]),
    ]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("high", "sum")
    ]
    outputs.append(helper.make_tensor_value_info("b", TensorProto.INT8, [2, 3]))
    graph = helper.make_graph(nodes, "several", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model of several tensors, and the example program linked with it."""
    folder = tmp_path_factory.mktemp("c") / "module"
    vdla.compile(several_tensors(), target="cpu").save(folder)
    source = EXAMPLES / "04_c_api" / "run_model.c"
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]
    library = [folder / "model.so", f"-Wl,-rpath,{folder}", "-o", folder / "run_model"]
    subprocess.run([*command, "-I", folder, source, *library], check=True)
    return folder


def run(built: Path, inputs: Path, parameters: Path) -> subprocess.CompletedProcess[str]:
    command = [built / "run_model", parameters, inputs, inputs.with_name("outputs")]
    return subprocess.run(command, capture_output=True, text=True)


def test_several_inputs_and_outputs(built: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(0, 40, (3, 2, 3)).astype(np.float32)
    b = rng.integers(-128, 128, (3, 2, 3)).astype(np.int8)
    raw = b"".join(x.tobytes() + y.tobytes() for x, y in zip(a, b, strict=True))
    (tmp_path / "inputs").write_bytes(raw)
    done = run(built, tmp_path / "inputs", built / "model.bin")
    assert done.returncode == 0, done.stderr
    lines = ["input a: float32[2,3]", "input b: int8[2,3]", "output high: float32[2,3]"]
    lines += ["output sum: float32[2,3]", "output b: int8[2,3]", "3 inferences"]
    assert done.stdout.splitlines() == lines
    total = a + b
    pairs = zip(total, b, strict=True)
    expected = [np.maximum(t, 0).tobytes() + t.tobytes() + y.tobytes() for t, y in pairs]
    assert (tmp_path / "outputs").read_bytes() == b"".join(expected)


def test_other_parameters_are_refused(tmp_path: Path) -> None:
    model = EXAMPLES / "models" / "digits_int8.onnx"
    vdla.compile(model, target="cpu").save(tmp_path / "m")
    program = [EXAMPLES / "04_c_api" / "run_model.c", tmp_path / "m" / "model.so"]
    rpath = f"-Wl,-rpath,{tmp_path / 'm'}"
    build = ["gcc", "-I", tmp_path / "m", *program, rpath, "-o", tmp_path / "m" / "run_model"]
    subprocess.run(build, check=True)
    (tmp_path / "inputs").write_bytes(bytes(256))
    whole = (tmp_path / "m" / "model.bin").read_bytes()
    changed = bytearray(whole)
    changed[100] ^= 4
    cases = {
        whole: "", whole[:-1]: "the size is another", whole + b"\0": "the size is another",
        bytes(changed): "the content is another", b"": "the size is another",
    }  # fmt: skip
    for number, (content, words) in enumerate(cases.items()):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(content)
        done = run(tmp_path / "m", tmp_path / "inputs", path)
        assert done.returncode == (1 if words else 0)
        assert words in done.stderr and done.stderr.count("\n") == bool(words)
    done = run(tmp_path / "m", tmp_path / "inputs", tmp_path / "absent")
    assert (done.returncode, done.stderr) == (1, f"vdla: {tmp_path}/absent: cannot be opened\n")


def test_inputs_that_end_early(built: Path, tmp_path: Path) -> None:
    (tmp_path / "inputs").write_bytes(bytes(31))
    done = run(built, tmp_path / "inputs", built / "model.bin")
    assert done.returncode == 1
    assert (
        done.stderr == f"run_model: {tmp_path}/inputs: expected whole inputs, it ends within one\n"
    )


def test_the_header_is_the_library_s(built: Path) -> None:
    """The numbers that both say, and the first field of the model, which a program checks."""
    text = HEADER.read_text()
    constants = dict(re.findall(r"#define (VDLA_\w+) (\d+)", text))
    assert constants == {
        "VDLA_API_VERSION": str(native.MODEL_API_VERSION),
        "VDLA_ALIGN_BYTES": str(native.ALIGN_BYTES),
    }
    library = ctypes.CDLL(str(built / "model.so"))
    version = ctypes.c_uint32.in_dll(library, "vdla_model")
    assert version.value == native.MODEL_API_VERSION
    assert (built / "vdla.h").read_text() == text


def test_the_header_is_c_plus_plus_too(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(
        '#include "vdla.h"\nint main() { return (int)vdla_model.input_count; }\n'
    )
    command = ["g++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", HEADER.parent]
    subprocess.run([*command, tmp_path / "a.cpp"], check=True)
