"""Anthropic's Messages API.

Its routes use the engine through `requests` and `answers`.
"""
