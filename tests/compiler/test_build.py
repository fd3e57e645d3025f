"""Whole networks through the compiler: bits against the graph's integer semantics, tokens, virtual
threads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from vdla.compiler.graph.interpret import interpret
from vdla.isa.check import check
from vdla.isa.memory import MemoryParams
from vdla.isa.opcodes import Unit, Units
from vdla.isa.params import PRESETS, HwParams
from vdla.isa.program import Program
from vdla.isa.reference import run
from vdla.isa.status import Status
from vdla.sim.model.core import simulate

from .building import build_for

MODELS = Path(__file__).parents[2] / "examples" / "models"
VTA = MemoryParams.load("vta")
ODD = HwParams(
    block_in=8, block_out=8, inp_depth=300, wgt_depth=77, acc_depth=130, uop_depth=99,
    par_depth=31, tmp_depth=37, out_depth=65,
)  # fmt: skip


def images(count: int) -> np.ndarray:
    return np.load(MODELS / "digits_test.npz")["x"][:count]


@pytest.mark.slow
@pytest.mark.parametrize("params", [*PRESETS.values(), ODD], ids=[*PRESETS, "odd depths"])
@pytest.mark.parametrize("vthreads", [1, 2])
def test_digits_on_every_configuration(params: HwParams, vthreads: int):
    model = build_for("sim", MODELS / "digits_int8.onnx", params, VTA, vthreads)
    assert model.program is not None and check(model.program) == []
    assert all(layer.target == "accel" for layer in model.layers if layer.macs)
    for image in images(2):
        dram = model.dram([image[None]])
        run(model.program, dram)
        (expected,) = interpret(model.graph, image[None])
        assert np.array_equal(model.results(dram, [image[None]])[0], expected)


def conv_model(channels: int, size: int) -> onnx.ModelProto:
    """A single quantised 3x3 convolution with padding."""
    rng = np.random.default_rng(3)

    def constant(name: str, value: np.ndarray) -> onnx.TensorProto:
        return numpy_helper.from_array(value, name)

    weight = rng.integers(-127, 128, (channels, channels, 3, 3)).astype(np.int8)
    constants = [
        constant("xs", np.array(0.05, np.float32)), constant("xz", np.array(3, np.int8)),
        constant("w", weight), constant("ws", np.full(channels, 0.01, np.float32)),
        constant("wz", np.zeros(channels, np.int8)),
        constant("ys", np.array(0.4, np.float32)), constant("yz", np.array(-7, np.int8)),
    ]  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
        helper.make_node("Conv", ["xf", "wf"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["c", "ys", "yz"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "ys", "yz"], ["y"]),
    ]
    shape = [1, channels, size, size]
    graph = helper.make_graph(
        nodes, "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        constants,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow
def test_two_virtual_threads_give_the_same_bits_in_fewer_cycles():
    slow = MemoryParams.load("slow")
    x = np.random.default_rng(0).normal(0, 3, (1, 32, 28, 28)).astype(np.float32)
    outputs, cycles = [], []
    for vthreads in (1, 2):
        model = build_for("sim", conv_model(32, 28), HwParams(), slow, vthreads)
        assert model.program is not None and check(model.program) == []
        dram = model.dram([x])
        cycles.append(simulate(model.program, dram, slow).cycles)
        outputs.append(model.results(dram, [x])[0])
    (expected,) = interpret(model.graph, x)
    assert np.array_equal(outputs[0], outputs[1]) and np.array_equal(outputs[0], expected)
    assert cycles[1] < cycles[0]


def without_token(program: Program, index: int, giver: Unit) -> Program:
    """The program with one token push removed that instruction ``index`` waits for."""
    taker = program.insns[index].unit
    earlier = [insn for insn in program.insns[:index] if insn.unit == taker]
    waits = sum(bool(insn.pop >> giver & 1) for insn in earlier)
    pushers = [i for i, n in enumerate(program.insns) if n.unit == giver and n.push >> taker & 1]
    source = pushers[waits]
    insns = list(program.insns)
    insns[source] = replace(insns[source], push=insns[source].push & ~Units(1 << taker))
    return replace(program, insns=tuple(insns))


def test_a_missing_token_is_found_before_and_reported_during_the_run():
    model = build_for("sim", MODELS / "digits_int8.onnx", HwParams(), VTA)
    assert model.program is not None
    popping = [i for i, insn in enumerate(model.program.insns) if insn.pop & Units.GEMM]
    broken = without_token(model.program, popping[-1], Unit.GEMM)
    findings = check(broken)
    assert findings and findings[0].kind == "deadlock"
    result = simulate(broken, broken.dram_image(), VTA)
    assert result.status == Status.DEADLOCK
    waiting = broken.insns[result.error_index or 0]
    assert f"at {waiting.opcode.name} instruction {result.error_index} (" in result.report
    assert min(result.ends) == -1


def test_stalls_of_every_unit_sum_to_the_cycles():
    model = build_for("sim", MODELS / "digits_int8.onnx", HwParams(), VTA)
    assert model.program is not None
    result = simulate(model.program, model.program.dram_image(), VTA)
    assert {sum(causes.values()) for causes in result.counters.values()} == {result.cycles}
