"""Contract of a training, and of the way to run it: specs, plans, recipes and registries."""
