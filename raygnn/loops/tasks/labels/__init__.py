"""What tasks that learn a label have in common, whether of nodes or of edges."""
