"""Simulators of the core: a SimPy model and the RTL, and their comparison."""
