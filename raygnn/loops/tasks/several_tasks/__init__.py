"""Several tasks, one encoder."""
