"""From graph tables to the parts of a partitioned graph, and from parts to a bundle."""
