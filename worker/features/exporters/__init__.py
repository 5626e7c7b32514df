"""Sending finished models and their metrics to object stores, MLflow and TensorBoard."""
