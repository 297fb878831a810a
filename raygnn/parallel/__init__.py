"""`scaling.shard`: optimizer state, or all state, of which each rank holds a part."""
