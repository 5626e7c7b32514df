"""`python -m worker.cli`."""

from worker.cli import main

if __name__ == "__main__":
    main()
