"""Checkpoints: written, kept, found and loaded."""
