"""Traces of PyTorch's profiler: one file per rank, on CPU or CUDA, over gloo or NCCL."""

from scalescope.traces.kineto.reading import read as read
from scalescope.traces.kineto.window import window as window
