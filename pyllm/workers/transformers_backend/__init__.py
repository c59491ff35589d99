"""Models that transformers computes, with pyllm's paged attention and linear layers in place of its own.

Only workers of such a model and the probe import this.
"""
