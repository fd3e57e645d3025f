"""What runs a compiled model: layouts, native code, programs, saved modules; no compiler."""
