"""Generated graphs."""
