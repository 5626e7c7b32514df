"""A fleet of a thousand idle workers on one Redis: real ones, and simulated ones that send the same commands."""
