"""What a run says of itself: lines, curves, traces, a report."""
