"""Random changes to training images: their amounts, and the operations on whole batches."""
