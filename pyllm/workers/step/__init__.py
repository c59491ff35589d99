"""One step's arrays: the plan as tensors, the state of slots, the rows of attention, positions.

Knows no layer and no sampling rule.
"""
