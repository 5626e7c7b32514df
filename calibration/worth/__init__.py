"""Expected saving of a measurement, by processor and workload."""
