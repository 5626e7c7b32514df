"""Files that survive kills: atomic writes, locks, journals."""
