"""Expected saving of a measurement, by processor, earlier findings and workload."""
