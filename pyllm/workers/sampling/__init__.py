"""Sampling: token ids and log-probabilities from logits, and embeddings from hidden states.

Knows slots, not requests; draws no random numbers, as they come with the plan.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
