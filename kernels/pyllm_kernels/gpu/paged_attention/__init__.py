"""Kernels of attention over the blocks of the KV cache, for prompts and decodes.

Know no model and no plan, only the metadata of a step.
"""
