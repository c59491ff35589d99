"""Models that transformers computes, with our paged attention and our linear layers in place of its own.

Only a worker of such a model and the probe import this.
"""
