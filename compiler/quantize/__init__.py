"""Quantisation of float ONNX models after training: integers of 8 bits, from samples of the inputs.

load -> ``prepare`` (the same meaning, fewer operators) -> ``plan`` (what becomes integer, what
shares a scale, and why not) -> ``calibrate`` (ranges) -> ``weights`` (and biases) -> ``rewrite``
(QDQ ONNX) -> ``accuracy`` (against the float model, on the same samples).
"""

from __future__ import annotations

from .flow import METHODS, PERCENTILE, Quantized, quantize

__all__ = ["METHODS", "PERCENTILE", "Quantized", "quantize"]
