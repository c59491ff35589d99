"""Ollama's API: `/api/chat`, `/api/generate`, embeddings, and the models of this server and of this machine.

Its routes use the engine through `requests` and `answers`, and share OpenAI's conversations and parameters.
"""
