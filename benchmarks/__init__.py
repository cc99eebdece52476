"""Slow, statistical and side-by-side comparisons: `make bench`, or `make bench SECTION=name`."""
