"""The worker of one rank: it receives a plan, runs the model and returns sampled tokens.

Knows slots and token ids: no request, no client, no scheduler. Only this package and `pyllm_kernels` use torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
