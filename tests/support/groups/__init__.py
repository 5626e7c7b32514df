"""Groups of workers, and networks between them."""
