"""What a draft of `graph.yaml` finds in a folder of tables."""
