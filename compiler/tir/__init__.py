"""The loop program: nodes, lowering of schedules, passes, printer, verifier."""
