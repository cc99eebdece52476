"""Trace files: one reader per format, the clocks of ranks, and where the time of a step goes."""
