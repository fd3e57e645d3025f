"""From loop programs to instructions: micro-ops, order, tokens, addresses in scratchpads."""
