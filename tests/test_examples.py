"""Every example runs to its end and says what it should."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.more
@pytest.mark.slow
def test_training_ends_in_the_three_files(tmp_path: Path):
    run("01_digits.py", "--out", str(tmp_path), "--epochs", "1")
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"digits_float.onnx", "digits_int8.onnx", "digits_test.npz"}


@pytest.mark.slow
def test_digits_are_equal_on_all_targets():
    text = run("02_run_digits.py")
    assert "accuracy 98.33 %" in text
    assert "sim = cpu: 0 of 3600 outputs different" in text
    assert "sim = rtl: 0 cycles, 0 bytes different (8 images" in text


@pytest.mark.more
@pytest.mark.slow
def test_an_operator_is_one_table_row():
    text = run("03_add_vector_opcode.py")
    for word in ("assembler: vector op=absdiff", "docs:", "RTL:"):
        assert word in text
    assert text.count("tmp equal: True") == 2


@pytest.mark.slow
def test_c_rust_and_python_agree():
    text = run("04_c_api/run.py")
    languages = ["C", "Rust"] if shutil.which("rustc") else ["C"]
    for model in ("digits_int8.onnx", "digits_float.onnx"):
        for language in languages:
            assert f"{model}: 0 of 3600 outputs of {language} and Python differ" in text
    assert text.count("360 inferences") == 2 * len(languages)


@pytest.mark.more
@pytest.mark.slow
def test_a_schedule_by_hand():
    text = run("05_own_schedule.py")
    before, after = text.split("before:")[1].split("after:")
    assert "vthread" not in before and "vthread" in after and "gemm.update" in after
    assert "cpu: equal to NumPy: True" in text and "all equal" in text
    cycles = [int(line.split("sim ")[1].split()[0].replace(",", "")) for line in lines(text)]
    assert len(cycles) == 3 and cycles == sorted(cycles, reverse=True)
    assert cycles[0] > 3 * cycles[-1]


def lines(text: str) -> list[str]:
    """The lines of schedules on the accelerator."""
    return [line for line in text.splitlines() if ": sim " in line]


@pytest.mark.more
@pytest.mark.slow
def test_every_kind_of_plugin():
    text = run("06_plugins/run.py")
    assert text.count("equal to NumPy: True") == 3
    assert "operators after the pass: ['Identity']" in text
    assert "chosen by the template: {'together': 4}" in text
    (operators,) = re.findall(r"on the accelerator: \{(.*)\}", text)
    assert sorted(operators.split(", ")) == ["'BlockReshape'", "'QConv2d'", "'QDense'"]
    assert "vector op=absdiff" in text and "10 programs differ in bytes, cycles: (0, 0)" in text


@pytest.mark.sweep  # of `make cosim`
def test_blocks_of_ones_own():
    steps = run("07_cosim/run.py").split("> vdla cosim")[1:]
    right, wrong, narrow, faults, record, replay, in_order, broken = steps
    assert "no divergence" in right and "bytes and cycles compared" in right
    assert "exit code 0" in right and "exit code 0" in faults
    for word in ("first divergence", "gemm", "acc[0]", "stem", "expected", "exit code 1"):
        assert word in wrong
    assert "port inp__data: expected input of 32 bits, got input of 16 bits" in narrow
    assert faults.count("expected by the bench") == 4 and "no divergence" in faults
    assert "no divergence" in record and "recorded: 15,201 cycles of gemm" in record
    assert "no divergence" in replay and "15,201 replayed, compared cycle by cycle" in replay
    assert "no divergence" in in_order and "compared in order" in in_order
    # In the same instruction as in the core, at the port that writes the accumulators.
    assert "port acc_write__data" in broken and "exit code 1" in broken and "stem" in broken
    assert instruction_of(broken) == instruction_of(wrong)


@pytest.mark.more
@pytest.mark.slow
def test_training_a_transformer_ends_in_two_files(tmp_path: Path):
    text = run("08_digits_transformer.py", "--out", str(tmp_path), "--epochs", "1")
    names = ["digits_transformer_float.onnx", "digits_transformer_int8.onnx"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert all(f"{name}: accuracy" in text for name in names)


@pytest.mark.more
@pytest.mark.slow
def test_the_transformer_is_equal_on_all_targets():
    text = run("09_run_digits_transformer.py")
    assert "float: accuracy 98.33 %" in text and "int8: accuracy 98.33 %" in text
    assert "sim = cpu: 0 of 3600 outputs different" in text
    assert "sim = rtl: 0 cycles, 0 outputs different (4 images)" in text


@pytest.fixture
def language_model(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("gguf", reason="needs the llm extra")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("12_language_model")


@pytest.mark.slow
def test_gradients_of_the_language_model_are_its_slopes(language_model: ModuleType):
    rng = np.random.default_rng(1)
    small = {"vocab_size": 32, "context_length": 8, "embedding_length": 24, "block_count": 2}
    config = language_model.Config(**small, feed_forward_length=16, rope_dimension_count=4)
    model = language_model.Llama(config, rng)
    for layer in model.layers().values():
        layer.weight = layer.weight + rng.normal(0, 0.1, layer.weight.shape)  # float64
    windows = rng.integers(0, 32, (3, 8))
    model.backward(language_model.loss_and_slope(model, windows)[1])
    grads = {name: layer.grads[0] for name, layer in model.layers().items()}
    for name, layer in model.layers().items():
        weight, direction = layer.weight, rng.normal(0, 1e-5, layer.weight.shape)
        losses = []
        for layer.weight in (weight + direction, weight - direction):
            losses.append(language_model.loss_and_slope(model, windows)[0])
        layer.weight = weight
        slope = (losses[0] - losses[1]) / 2
        assert slope == pytest.approx((grads[name] * direction).sum(), rel=1e-5), name


@pytest.mark.more
@pytest.mark.slow
def test_training_a_language_model_ends_in_one_file(tmp_path: Path):
    pytest.importorskip("gguf", reason="needs the llm extra")
    text = run("12_language_model.py", "--out", str(tmp_path), "--steps", "2")
    assert [path.name for path in tmp_path.iterdir()] == ["words.gguf"]
    after, before = map(float, re.findall(r"\d+\.\d+", text))
    assert after == pytest.approx(before, rel=1e-3) and after < 600


@pytest.mark.slow
def test_the_language_model_knows_the_text(language_model: ModuleType):
    import gguf
    from tokenizers import Tokenizer, models, pre_tokenizers

    path = EXAMPLES / "models" / "words.gguf"
    assert path.stat().st_size < 400_000
    fields = gguf.GGUFReader(path).fields
    words, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(numbers, [tuple(pair.split()) for pair in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model = language_model.Llama(language_model.Config(), np.random.default_rng(0))
    language_model.restore(path, model)
    held = [tokenizer.encode(text).ids for text in language_model.documents()[9:100:10]]
    assert np.exp(language_model.held_out_loss(model, np.concatenate(held), 256)) < 15


def instruction_of(said: str) -> str:
    """The instruction that a divergence names."""
    return next(row.split("│")[2].strip() for row in said.splitlines() if "│ instruction" in row)
