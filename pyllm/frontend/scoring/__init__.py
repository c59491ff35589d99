"""Scores of texts: `/v1/rerank` as Jina and Cohere have it, `/v1/score` and `/classify` as vLLM has them.

`scores` knows no HTTP: Python programs use it, too. What a batch of prompts is belongs to `requests`.
"""
