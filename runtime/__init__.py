"""What runs a compiled model: tensors in DRAM, native code, programs, saved modules. No compiler."""
