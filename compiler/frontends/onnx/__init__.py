"""The reader of ONNX models."""
