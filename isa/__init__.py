"""The instruction set: configuration, instructions, program files, reference interpreter, static checker."""
