"""A step of the engine without a model, and its parts: scheduler, KV cache, control plane, sampling, grammars.

Knows no text and no HTTP.
"""
