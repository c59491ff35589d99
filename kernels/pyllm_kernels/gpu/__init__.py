"""The Triton kernels, and the helpers they share. `registry.py` chooses the devices that use them.

Importing this package imports no Triton. Importing a module of it does, except `attention_tuning`.
"""
