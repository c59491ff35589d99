"""The worker of one rank: a plan comes in, the model runs, sampled tokens go out.

Knows slots and token ids: no request, no client, no scheduler. Only here and in `pyllm_kernels` is torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
