"""Run the digits transformer on every target and compare them.

    python examples/09_run_digits_transformer.py [--images N] [--rtl-images N] [--memory M]

All test images on the SimPy model and on the CPU, some on the RTL, of a core whose vector unit has
a table of 16 bits, which softmax needs. Exit code 1 unless the outputs are equal, SimPy and RTL
agree in the start and end of every instruction, and the accuracy is at most a point below that of
the float network, which ONNX Runtime runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import vdla

MODELS = Path(__file__).parent / "models"
#: How much of the accuracy int8 may cost.
POINT = 0.01


def float_logits(images: np.ndarray) -> np.ndarray:
    """The answers of the float network."""
    path = str(MODELS / "digits_transformer_float.onnx")
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"image": images})[0]


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=360, help="test images on SimPy and CPU")
    parser.add_argument("--rtl-images", type=int, default=4, help="test images on the RTL")
    parser.add_argument("--memory", default="vta", help="vta, wide, slow or a TOML file")
    arguments = parser.parse_args()
    data = np.load(MODELS / "digits_test.npz")
    images, labels = data["x"][: arguments.images], data["y"][: arguments.images]
    few = images[: arguments.rtl_images]

    sim, cpu, rtl = (
        vdla.compile(
            MODELS / "digits_transformer_int8.onnx", target, "16x16",
            arguments.memory,
        )
        for target in ("sim", "cpu", "rtl")
    )  # fmt: skip
    (logits,), (on_cpu,) = sim.run(images), cpu.run(images)
    report, real = sim.report, float_logits(images)
    lost = float((real.argmax(1) == labels).mean() - (logits.argmax(1) == labels).mean())
    unequal = int((logits != on_cpu).sum())
    print(f"configuration {sim.params.hash}, memory {sim.memory.label}")
    for name, answers in (("float", real), ("int8", logits)):
        accuracy = 100 * (answers.argmax(1) == labels).mean()
        print(f"{name}: accuracy {accuracy:.2f} % on {len(images)} images")
    print(f"top-1 as float: {100 * (real.argmax(1) == logits.argmax(1)).mean():.1f} %")
    print(f"sim = cpu: {unequal} of {logits.size} outputs different")
    print(f"cycles {report['cycles']:,} an image in {len(sim.compiled.programs)} programs, "
          f"{report['macs']:,} MACs, "
          f"{100 * report['utilisation']['end_to_end']:.1f} % of peak")  # fmt: skip

    print("building the RTL simulation (once a configuration)", file=sys.stderr)
    (on_rtl,) = rtl.run(few)
    outputs_off = int((on_rtl != logits[: len(few)]).sum())
    cycles_off = sum(
        int(np.abs(np.asarray(a) - np.asarray(b)).sum())
        for a, b in ((sim.timing.starts, rtl.timing.starts), (sim.timing.ends, rtl.timing.ends))
    )
    print(f"sim = rtl: {cycles_off} cycles, {outputs_off} outputs different ({len(few)} images)")
    return 0 if not (unequal or cycles_off or outputs_off) and lost <= POINT else 1


if __name__ == "__main__":
    sys.exit(main())
