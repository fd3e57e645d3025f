"""The graph level: import a model, rewrite it to integer operators, interpret it."""
