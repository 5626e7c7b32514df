"""A user's model without batch norms: the result does not depend on how a batch is divided."""

PLAIN_MODEL = """
from torch import nn

def plain(shape, classes):
    sizes = shape[0] * shape[1] * shape[2], 32, 48, 24, classes
    layers = [layer for size in zip(sizes, sizes[1:]) for layer in (nn.Linear(*size), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])
"""
