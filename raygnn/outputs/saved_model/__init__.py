"""A trained model as a folder of its own."""
