"""The page, its service, and what stands before it."""
