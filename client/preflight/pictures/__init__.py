"""Pictures of drawings: where the ink is, on even and on uneven paper; numpy is imported when it is used."""
