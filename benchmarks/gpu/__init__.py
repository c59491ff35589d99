"""Kernels and served models on a CUDA card: right, and how fast. `python -m benchmarks.gpu`; README.md says more."""
