"""Traces of PyTorch's profiler: one file per rank, on CPU or CUDA, over gloo or NCCL."""

from scalescope.timelines.kineto.reading import read as read
from scalescope.timelines.kineto.window import window as window
