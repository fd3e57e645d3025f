"""Rewritings of a graph for the processor."""
