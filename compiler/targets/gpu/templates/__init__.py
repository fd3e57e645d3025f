"""How a graphics processor computes operators."""
