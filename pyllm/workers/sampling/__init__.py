"""Sampling: token ids and log-probabilities from logits, and embeddings from hidden states.

Knows slots, not requests; draws no random numbers, as they come with the plan.
"""
