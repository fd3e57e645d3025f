"""Graph passes for the processor."""
