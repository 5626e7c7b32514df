"""Memory of a micro-batch, probed and predicted."""
