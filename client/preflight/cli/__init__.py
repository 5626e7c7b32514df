"""The command `preflight`. Each command imports what it needs when it runs, so that `--help` is immediate."""
