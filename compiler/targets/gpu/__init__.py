"""Graphics processors: kernels as CUDA C++ and OpenCL C from one thread-level program."""
