"""Readers of model files: each makes a graph."""
