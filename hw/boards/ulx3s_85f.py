"""ULX3S 85F with its SDRAM (not built yet)."""
