"""What targets share: workloads, fusion of element-wise chains, functions of floats, a cache."""
