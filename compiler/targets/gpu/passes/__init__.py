"""Passes over graphs for graphics processors."""
