"""Benchmarks: the layers and networks that accelerators are compared on, and what ours makes of
them."""
