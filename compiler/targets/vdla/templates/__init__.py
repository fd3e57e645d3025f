"""How the accelerator computes operators: a file for each family."""
