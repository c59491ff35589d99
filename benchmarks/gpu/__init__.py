"""Kernels and served models on a CUDA card: correctness and speed. `python -m benchmarks.gpu`; see README.md."""
