"""Built-in models and the factory that builds a model by name."""
