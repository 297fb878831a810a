"""The built-in tasks, from batches to losses and metrics."""
