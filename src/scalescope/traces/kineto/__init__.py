"""Traces of PyTorch's profiler: one file per rank, on CPU or CUDA, over gloo or NCCL."""
