"""The Triton kernels, and the helpers they share. `dispatch.py` decides which device uses them.

Importing this package imports no Triton. Importing a module of it does, except `attention_tuning`.
"""
