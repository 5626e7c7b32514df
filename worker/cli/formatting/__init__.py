"""Text and JSON that commands print."""
