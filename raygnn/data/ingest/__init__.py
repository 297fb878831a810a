"""From graph tables to a bundle."""
