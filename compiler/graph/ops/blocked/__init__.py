"""Operators on blocks of channels: what the CPU runs instead of NCHW operators.

A blocked tensor is [N, C/B, H, W, B]: B channels lie side by side, as a vector register holds
them; channels beyond C are 0. ``targets/cpu/passes/block_channels.py`` makes these operators.
"""
