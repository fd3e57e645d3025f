"""Code generators: loop programs to accelerator instructions and to machine code."""
