"""Graph tables: their files, columns and specs, in memory and on disk."""
