"""Horovod's timelines, in this order: scan (bytes as Horovod writes them) or columns (any others), pairs, accounting.

`reading` is the reader that calls them.
"""
