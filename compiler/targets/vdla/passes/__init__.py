"""Rewritings of a graph for the accelerator."""
