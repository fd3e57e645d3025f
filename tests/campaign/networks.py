"""The digits network on a configuration: what differs between targets, and which figures do not add
up."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import vdla

from .configurations import Platform

MODELS = Path(__file__).parents[2] / "examples" / "models"
DIGITS = MODELS / "digits_int8.onnx"
#: As many as the largest batch.
IMAGES = np.load(MODELS / "digits_test.npz")["x"][:4]


@cache
def logits() -> np.ndarray:
    """By machine code on the host."""
    return np.asarray(vdla.compile(DIGITS, "cpu").run(IMAGES)[0])


def run(platform: Platform, target: str, vthreads: int) -> tuple[dict[str, Any], list[str]]:
    """The report of a run, and what is wrong with it."""
    module = vdla.compile(DIGITS, target, platform.params, platform.memory, vthreads)
    (got,) = module.run(IMAGES)
    report = module.report
    return report, list(_faults(target, got, report))


def _faults(target: str, got: np.ndarray, report: dict[str, Any]) -> Iterator[str]:
    if wrong := int((got != logits()).sum()):
        yield f"{target}: {wrong} of {got.size} logits are not the host's"
    for unit, causes in report["stalls"].items():
        if sum(causes.values()) != report["cycles"] or min(causes.values()) < 0:
            yield f"{target}: cycles of {unit} are {causes}, not {report['cycles']} in all"
    for row in report["layers"]:
        if row["macs"] and row["target"] != "accel":
            yield f"{target}: {row['name']} is not on the accelerator"


def differences(platform: Platform, vthreads: int = 2) -> tuple[int, list[str]]:
    """Cycles of the network, and what differs between host, SimPy and RTL."""
    (sim, wrong), (rtl, also) = (run(platform, target, vthreads) for target in ("sim", "rtl"))
    wrong += also
    for what in ("cycles", "stalls"):
        if sim[what] != rtl[what]:
            wrong.append(f"{what}: sim {sim[what]}, rtl {rtl[what]}")
    for a, b in zip(sim["layers"], rtl["layers"], strict=True):
        if a["cycles"] != b["cycles"]:
            wrong.append(f"cycles of {a['name']}: sim {a['cycles']}, rtl {b['cycles']}")
    return sim["cycles"], wrong
