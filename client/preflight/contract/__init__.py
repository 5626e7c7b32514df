"""What to train and how to run it: specs, plans, recipes and registries."""
