"""What engineers run beside the product: benchmarks."""
