"""Tensor expressions and schedules: what to compute, and separately how."""
