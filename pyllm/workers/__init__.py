"""The worker of one rank: it receives a plan, runs the model and returns sampled tokens.

Knows slots and token ids: no request, no client, no scheduler. Only this package and `pyllm_kernels` use torch.
"""
