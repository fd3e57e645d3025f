"""The reader of TensorFlow Lite models."""
