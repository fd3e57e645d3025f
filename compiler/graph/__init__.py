"""The graph level: operators, their arithmetic, passes, and the interpreter that is the oracle."""
