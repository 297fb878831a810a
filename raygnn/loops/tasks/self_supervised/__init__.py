"""Representations of nodes learned without labels, and judged by a linear probe."""
