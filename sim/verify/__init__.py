"""Random programs through the reference, the model and the RTL."""
