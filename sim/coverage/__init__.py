"""Functional coverage: what programs and their timing have exercised, from every simulator alike."""
