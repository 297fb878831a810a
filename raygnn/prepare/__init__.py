"""Writes tables and their descriptions: drafts, labels, converters and generators."""
