"""Horovod's timelines: what rank 0 saw."""

from scalescope.traces.horovod.reading import read as read
from scalescope.traces.horovod.reading import window as window
