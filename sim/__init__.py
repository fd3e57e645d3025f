"""Two simulators of one machine: SimPy processes named as the blocks of hw, and the RTL itself."""
