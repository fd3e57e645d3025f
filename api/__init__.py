"""What :mod:`vdla` offers besides :func:`vdla.compile`: kernels of one's own, schedules, tuning."""
