"""The Triton kernels, one op a file.

Know no device: `dispatch.py` decides where they run. Importing a module of this package imports Triton.
"""
