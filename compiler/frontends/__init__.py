"""Readers of model files: from ONNX, TensorFlow Lite and PyTorch to a graph."""
