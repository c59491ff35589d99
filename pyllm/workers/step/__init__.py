"""One step's arrays: the plan as tensors, the KV cache, the state of slots, the inputs of a forward pass.

Knows no layer and no sampling rule.
"""
