"""A rank's KV blocks: the cache on the device, the pool on the host, swaps, and the connector's calls and copies.

Knows the lists of blocks in a plan; neither sequences nor layers nor the storage of a connector.
"""
