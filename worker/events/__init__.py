"""Events on their way from a training to logs and Redis."""
