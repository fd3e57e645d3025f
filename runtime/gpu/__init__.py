"""What runs the kernels of a compiled model: a CUDA driver, OpenCL, or the host's processor."""
