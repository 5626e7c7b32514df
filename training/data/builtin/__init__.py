"""Built-in data sets: MNIST and its relatives in IDX files, and scikit-learn's digits."""
