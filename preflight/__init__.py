"""The command `preflight`, and the check that Python finds this project's packages and not others of their names."""
