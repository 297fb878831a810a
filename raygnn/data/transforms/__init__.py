"""Transforms of raw columns: what the manifest asks for, what training rows gave, what it does."""
