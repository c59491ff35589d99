"""Facts of a machine: its processor, memory, cards, software, control groups and limits.

Reads Linux's files below an injected root, and asks the CUDA driver. Knows no model and no setting; starts nothing.
"""
