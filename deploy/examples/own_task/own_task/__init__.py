"""A data set of coloured shapes and a model for it."""
