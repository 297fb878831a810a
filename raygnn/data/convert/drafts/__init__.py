"""Analysis of a folder of tables for a draft of `graph.yaml`."""
