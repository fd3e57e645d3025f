"""The cycle-exact model: a SimPy process per block, named as in hw/core."""
