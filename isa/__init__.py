"""The instruction set: configuration, instructions, programs, reference interpreter, checker."""
