"""Kernels of layers that keep a state along the sequence.

Know no model and no plan, only rows of tokens and the states that they read and write.
"""
