"""Readers of TensorFlow Lite Micro's operators on sounds."""
