"""What runs on the accelerator and what its operators share: program-level options, scratchpad
allocation, layout in DRAM, and the program of a part of a graph."""
