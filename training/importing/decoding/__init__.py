"""Decoding: child processes with bounded memory and time turn untrusted files into rows of pixels."""
