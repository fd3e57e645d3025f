"""The benchmarks' figures hold, on layers that are quick to simulate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from vdla.bench import networks
from vdla.bench.measure import measure, random_inputs
from vdla.bench.net import Net
from vdla.bench.networks import network_rows
from vdla.bench.roofline import draw_roofline
from vdla.bench.table2 import choose_layers, table2_rows
from vdla.bench.workloads import NETWORKS, TABLE_2, ConvLayer
from vdla.cli import run_app
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams
from vdla.report.report import covered, on_host

from ..compiler.building import build_for

#: Least fraction of the roofline, by memory and layer: the layers that are furthest from it.
ROOFLINE = {
    "vta": {"C3": 0.97, "C8": 0.90, "C11": 0.90, "C12": 0.99},
    "wide": {"C3": 0.97, "C5": 0.93, "C8": 0.93, "C11": 0.95},
    "slow": {"C3": 0.85, "C8": 0.86, "C11": 0.87},
}


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("memory", ROOFLINE)
def test_convolutions_reach_their_roofline(memory: str) -> None:
    preset = MEMORY_PRESETS[memory]
    rows = table2_rows(
        choose_layers(list(ROOFLINE[memory])), HwParams(bus_bits=preset.bus_bits), preset
    )
    for row in rows:
        least = ROOFLINE[memory][row["layer"]]
        assert row["roofline_fraction"] >= least, (row["layer"], row["cycles"])


@pytest.mark.slow
def test_depthwise_layers_keep_the_vector_unit_busy() -> None:
    rows = table2_rows(choose_layers(["D4", "D5", "D7", "D9"]), HwParams(), MEMORY_PRESETS["vta"])
    for row in rows:
        assert row["vector_cycles"] <= row["cycles"] <= 1.1 * row["vector_cycles"], row["layer"]


@pytest.mark.slow
def test_first_convolution_fills_the_tensor_core() -> None:
    """Three input channels, packed as whole windows; the picture is smaller than that of table 2's
    C1."""
    layer = ConvLayer("small C1", 56, 3, 64, 7, 2)
    (row,) = table2_rows([layer], HwParams(), MEMORY_PRESETS["vta"])
    assert row["end_to_end"] >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["C8", "C11"])
def test_two_virtual_threads_beat_one(name: str) -> None:
    one, two = table2_rows(
        choose_layers([name]), HwParams(), MEMORY_PRESETS["slow"], vthreads=(1, 2)
    )
    assert two["cycles"] < one["cycles"]


#: Millions of multiply-accumulates of the paper's networks.
MEGAMACS = {
    "resnet18": 1814.1,
    "mobilenet_v1": 568.7,
    "dcgan": 410.6,
    "dqn": 9.352,
    "lstm_lm": 13.26,
}


@pytest.mark.more
@pytest.mark.slow
def test_layers_and_networks_are_the_papers() -> None:
    macs = {layer.name: sum(_macs(layer.model())) for layer in TABLE_2}
    assert (macs["C1"], macs["C2"], macs["C12"]) == (460_992 * 256, 451_584 * 256, 451_584 * 256)
    assert macs["D9"] == 7 * 7 * 1024 * 9
    assert [*NETWORKS] == [*MEGAMACS]
    for name, network in NETWORKS.items():
        for quantized in (True, False):
            found = sum(_macs(network(1, quantized))) / 1e6
            assert found == pytest.approx(MEGAMACS[name], rel=1e-3), name


def _macs(model: onnx.ModelProto) -> list[int]:
    """Multiply-accumulates of every convolution and matrix product, from ONNX's own shapes."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*inferred.value_info, *inferred.input, *inferred.output)
    } | {constant.name: list(constant.dims) for constant in inferred.initializer}
    spread = {"Conv": 0, "Gemm": 0, "ConvTranspose": 1}  # what a tap's products belong to
    return [
        int(np.prod(shapes[node.input[0] if spread[node.op_type] else node.output[0]]))
        * int(np.prod(shapes[node.input[1]][1:]))
        for node in inferred.node
        if node.op_type in spread
    ]


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_float_networks_equal_onnx_runtime(name: str) -> None:
    model = NETWORKS[name](1, False)
    compiled = build_for("cpu", model, HwParams(), MEMORY_PRESETS["vta"])
    inputs = random_inputs(compiled.inputs)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {t.name: x for t, x in zip(compiled.inputs, inputs, strict=True)}
    expected = session.run(None, feeds)
    for got, wanted in zip(compiled.run_cpu(inputs), expected, strict=True):
        assert np.ptp(wanted) > 0.1
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.more
@pytest.mark.slow
def test_quantised_networks_mean_the_float_ones() -> None:
    """Only coarsely: the weights are the same, but activations have 8 bits."""
    for name in ("dqn", "lstm_lm"):
        outputs = []
        for quantized in (True, False):
            model = NETWORKS[name](1, quantized)
            compiled = build_for("cpu", model, HwParams(), MEMORY_PRESETS["vta"])
            outputs.append(compiled.run_cpu(random_inputs(compiled.inputs)))
        for integer, real in zip(*outputs, strict=True):
            assert np.corrcoef(integer.ravel(), real.ravel())[0, 1] > 0.97, name


@pytest.mark.more
@pytest.mark.slow
def test_networks_with_work_of_the_host_between_programs() -> None:
    dqn, lstm = network_rows(["dqn", "lstm_lm"], HwParams(), MEMORY_PRESETS["vta"])
    assert covered(dqn["coverage"]) == covered(lstm["coverage"]) == 1.0 and not dqn["uncovered"]
    assert (dqn["programs"], lstm["programs"]) == (1, 3)
    assert on_host(dqn["coverage"]) == "2 of 7" and dqn["host_s"] > 0
    assert lstm["coverage"]["operators_on_host"] > 2, "between its programs, too"
    # The weights come once over the bus of 8 bytes, and that bounds both.
    assert 1.0 <= dqn["cycles"] / (1_685_000 / 8) < 1.2
    assert 1.0 <= lstm["cycles"] / (13_260_000 / 8) < 1.1


@pytest.mark.more
@pytest.mark.slow
def test_transposed_convolutions_on_the_accelerator() -> None:
    (row,) = network_rows(["dcgan"], HwParams(), MEMORY_PRESETS["vta"])
    assert covered(row["coverage"]) == 1.0 and row["end_to_end"] > 0.6 and row["programs"] == 1


def tiny() -> Net:
    net = Net("tiny")
    x = net.conv(net.input(1, 16, 6, 6), 16, 3)
    net.output(net.add(net.conv(x, 16, 3, groups=16), x))
    return net


@pytest.mark.slow
def test_a_network_that_does_not_fit_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its row has the reason; the table has the others, and the last line the reason."""
    usual = networks._row

    def row(name: str, *machine: Any) -> dict[str, Any]:
        if name == "lstm_lm":
            raise VdlaError("memory: too small")
        return usual(name, *machine)

    monkeypatch.setattr(networks, "_row", row)
    assert run_app(["bench", "networks", "--models", "lstm_lm,dqn"]) == 2
    out, err = capsys.readouterr()
    assert "dqn" in out and err.endswith("vdla: lstm_lm: memory: too small\n")


@pytest.mark.slow
def test_a_measurement_checks_values(monkeypatch: pytest.MonkeyPatch) -> None:
    vta = MEMORY_PRESETS["vta"]
    found = measure(tiny().model(), HwParams(), vta, ("sim",))
    assert sum(layer.macs for layer in found.compiled.layers) == 36 * 16 * (144 + 9)
    monkeypatch.setattr(
        "vdla.bench.measure.interpret", lambda graph, *x: [np.full((1, 16, 6, 6), 5, np.float32)]
    )
    with pytest.raises(VdlaError, match="differ from the graph interpreter's"):
        measure(tiny().model(), HwParams(), vta, ("sim",))


@pytest.mark.slow
def test_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["bench", "table2", "--layers", "C11", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["command"] == "bench table2" and report["config_hash"]
    (row,) = report["rows"]
    assert row["sim_cycles"] == row["cycles"] and row["rtl_cycles"] is None
    assert row["mac_cycles"] == 25_088 and row["vthreads"] == 2
    assert run_app(["bench", "table2", "--layers", "C11"]) == 0
    assert f"{row['cycles']:,}" in capsys.readouterr().out
    assert run_app(["bench", "table2", "--layers", "C77"]) == 2
    assert "expected names from C1, C2" in capsys.readouterr().err
    assert run_app(["bench", "networks", "--models", "vgg"]) == 2
    assert "expected one of resnet18" in capsys.readouterr().err


@pytest.mark.slow
def test_roofline_picture(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    png = tmp_path / "roofline.png"
    assert run_app(["bench", "roofline", "--png", str(png), "--layers", "C11"]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "C11" in capsys.readouterr().out


@pytest.mark.slow
def test_names_in_the_roofline_do_not_collide(tmp_path, monkeypatch) -> None:
    """Layers whose points lie on and beside each other, as those of a network do."""
    from matplotlib import pyplot
    from matplotlib.text import Annotation, Text

    figures = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    layers = [(f"layer_{i}", 1_000_000, 4_000 + 300 * (i // 3), 5_000 + i // 3) for i in range(24)]
    rows = [
        {"layer": name, "macs": macs, "channel_bytes": read, "cycles": cycles, "vthreads": 2}
        for name, macs, read, cycles in layers
    ]
    draw_roofline(rows, HwParams(), MEMORY_PRESETS["vta"], tmp_path / "r.png")
    (figure,) = figures
    (axes,) = figure.axes
    notes = [note for note in axes.texts if isinstance(note, Annotation)]
    renderer = figure.canvas.get_renderer()
    boxes = [Text.get_window_extent(note, renderer) for note in notes]
    assert "layer_0, layer_1 +1" in [note.get_text() for note in notes] and len(notes) >= 6
    frame = axes.get_window_extent()
    for index, box in enumerate(boxes):
        assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 <= frame.y1
        assert not any(box.overlaps(other) for other in boxes[:index])
        for line in axes.get_lines()[1:]:
            places = axes.transData.transform(line.get_xydata())
            assert not any(box.contains(*place) for place in places)


@pytest.mark.more
@pytest.mark.slow
def test_both_simulators_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["bench", "table2", "--layers", "C11,D9", "--compare", "--json", "-"]) == 0
    for row in json.loads(capsys.readouterr().out)["rows"]:
        assert row["sim_cycles"] == row["rtl_cycles"] == row["cycles"]


@pytest.mark.more
@pytest.mark.slow
def test_speed_of_the_simulators(capsys: pytest.CaptureFixture[str]) -> None:
    digits = Path(__file__).parents[2] / "examples" / "models" / "digits_int8.onnx"
    options = ["--models", str(digits), "--rounds", "1"]
    assert run_app(["bench", "speed", *options, "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["instructions"] > 100 and row["cycles"] > 1000
    assert 0 < row["timing_s"] and row["ratio"] == row["rtl_s"] / row["sim_s"]
    assert run_app(["bench", "speed", "--models", "vgg"]) == 2
    assert "expected files or names from resnet18" in capsys.readouterr().err
    assert run_app(["bench", "speed", *options[:2], "--rounds", "0"]) == 2
    assert "'--rounds': Input should be greater than or equal to 1" in capsys.readouterr().err
