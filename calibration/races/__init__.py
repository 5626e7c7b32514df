"""Plans timed against each other: blocks of steps, pairs, budgets; the state of one search."""
