"""What a compiled model needs when it runs: layouts, host operators, executors."""
