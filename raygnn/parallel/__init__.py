"""`scaling.shard`: each rank stores a part of the optimizer state, or of all state."""
