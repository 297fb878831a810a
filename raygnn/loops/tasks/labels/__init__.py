"""Shared parts of tasks that learn a label, of nodes or of edges."""
