"""Predictions and embeddings of a trained model, as tables."""
