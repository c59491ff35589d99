"""LoRA adapters on one rank: those in the host's memory, the device slots that layers read, and each row's adapter.

Knows the plan's sections, not the reason for which an adapter has a slot.
"""
