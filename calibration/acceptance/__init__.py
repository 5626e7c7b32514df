"""Whether the fastest plan replaces the user's own, and the final measurement of the plan that stays."""
