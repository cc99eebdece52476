"""Horovod's timelines: what rank 0 saw."""

from scalescope.timelines.horovod.reading import read as read
from scalescope.timelines.horovod.window import window as window
