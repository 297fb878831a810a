"""From the losses of micro-batches to one gradient of all ranks."""
