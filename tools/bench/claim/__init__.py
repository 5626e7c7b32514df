"""The claim: the same training as a whole command, as plain PyTorch and with preflight, in real containers."""
