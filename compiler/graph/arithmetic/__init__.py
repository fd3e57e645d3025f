"""The arithmetic of operators in NumPy: requantisation, fixed point, and equal forms of both."""
