"""Classification and regression of edges."""
