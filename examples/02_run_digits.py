"""Run the digits network on every target and compare them: this is ``make demo``.

    python examples/02_run_digits.py [--images N] [--rtl-images N] [--memory M]

All test images on the SimPy model and on the CPU, some on the RTL. Exit code 1 unless the outputs
are equal, SimPy and RTL agree in every byte of DRAM and in the start and end of every instruction,
and the accuracy is at least 96 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import vdla
from vdla.sim.model.core import simulate
from vdla.sim.rtl.driver import RtlSimulator

MODELS = Path(__file__).parent / "models"
ACCURACY = 0.96


def differences(module: vdla.Module, images: np.ndarray) -> tuple[int, int, int, float]:
    """SimPy against RTL, image by image.

    Returns
    -------
    tuple
        Cycles that differ (of starts, ends and totals), bytes that differ, RTL cycles in all, and
        RTL cycles a second.
    """
    rtl = RtlSimulator(module.params)
    rtl.build()
    cycles_off = bytes_off = rtl_cycles = 0
    rtl_s = 0.0
    for index in range(len(images)):
        before = module.compiled.dram([images[index : index + 1]])
        sim_dram, rtl_dram = before.copy(), before.copy()
        expected = simulate(module.program, sim_dram, module.memory)
        started = time.perf_counter()
        got = rtl.run(module.program, rtl_dram, module.memory)
        rtl_s += time.perf_counter() - started
        rtl_cycles += got.cycles
        pairs = ((expected.starts, got.starts), (expected.ends, got.ends))
        cycles_off += abs(expected.cycles - got.cycles)
        for a, b in pairs:
            cycles_off += int(np.abs(np.asarray(a) - np.asarray(b)).sum())
        bytes_off += int((sim_dram != rtl_dram).sum())
    return cycles_off, bytes_off, rtl_cycles, rtl_cycles / rtl_s


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=360, help="test images on SimPy and CPU")
    parser.add_argument("--rtl-images", type=int, default=8, help="test images on the RTL")
    parser.add_argument("--memory", default="vta", help="vta, wide, slow or a TOML file")
    arguments = parser.parse_args()
    data = np.load(MODELS / "digits_test.npz")
    images, labels = data["x"][: arguments.images], data["y"][: arguments.images]

    model = MODELS / "digits_int8.onnx"
    sim = vdla.compile(model, target="sim", memory=arguments.memory)
    (logits,) = sim.run(images)
    (on_cpu,) = vdla.compile(model, target="cpu", memory=arguments.memory).run(images)
    accuracy = float((logits.argmax(1) == labels).mean())
    unequal = int((logits != on_cpu).sum())
    report = sim.report
    print(f"configuration {sim.params.hash}, memory {sim.memory.label}")
    print(f"accuracy {100 * accuracy:.2f} % on {len(images)} images")
    print(f"sim = cpu: {unequal} of {logits.size} outputs different")
    print(f"cycles {report['cycles']:,} an image, {report['macs']:,} MACs, "
          f"{100 * report['utilisation']['end_to_end']:.1f} % of peak")  # fmt: skip

    print("building the RTL simulation (once a configuration)", file=sys.stderr)
    cycles_off, bytes_off, rtl_cycles, rate = differences(sim, images[: arguments.rtl_images])
    print(
        f"sim = rtl: {cycles_off} cycles, {bytes_off} bytes different "
        f"({arguments.rtl_images} images, {rtl_cycles:,} cycles, {rate / 1e3:.0f} kcycle/s)"
    )
    held = not (unequal or cycles_off or bytes_off) and accuracy >= ACCURACY
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
