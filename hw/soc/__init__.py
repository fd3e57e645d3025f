"""A system on a chip: the core as a peripheral of a RISC-V processor, in one memory with it."""
