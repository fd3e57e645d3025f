"""Functional coverage: what programs and their timing exercise, from every simulator alike."""
