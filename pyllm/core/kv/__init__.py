"""KV blocks that leave or reach a core's device: looked up, loaded and saved with its steps; events about them.

Knows the connector's interface, and no store.
"""
