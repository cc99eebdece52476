"""Horovod's timelines: what rank 0 saw."""
