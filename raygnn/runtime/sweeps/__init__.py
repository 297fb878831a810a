"""Sweeps over configs with Ray Tune."""
