"""What a measurement is expected to save, by processor, earlier findings and workload."""
