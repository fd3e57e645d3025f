"""How the processor computes operators: a file for each family of schedules."""
