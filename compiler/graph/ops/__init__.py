"""The operators of a graph."""
