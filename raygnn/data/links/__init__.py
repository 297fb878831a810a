"""Links to learn from, and the graph that is left to carry messages."""
