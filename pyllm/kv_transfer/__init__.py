"""KV blocks that leave the device: the connectors between core, workers and outside, and the stores below them.

Knows bytes and hashes; no tensors, no scheduler, no worker.
"""
