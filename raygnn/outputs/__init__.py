"""Outputs of a run: lines, curves, traces, a report."""
