"""Data sets: fetching, preparing, splitting, batching and augmentation."""
