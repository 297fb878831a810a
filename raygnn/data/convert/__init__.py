"""Converters: a foreign format to GraphTables, one module a format."""
