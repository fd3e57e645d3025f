"""Simulators of the core: a SimPy model and the RTL, and what compares them."""
