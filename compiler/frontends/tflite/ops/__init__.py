"""Readers of TensorFlow Lite operators, a file for each family, with a column for each type."""
