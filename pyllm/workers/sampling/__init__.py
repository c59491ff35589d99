"""From logits to token ids, log-probabilities and embeddings.

Knows slots, not requests; draws no random numbers: they come with the plan.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
