"""Passes: pure functions from loop program to loop program, one file each."""
