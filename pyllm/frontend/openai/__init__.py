"""OpenAI's completions, chat completions, embeddings and models, and vLLM's tokenization.

Each route decodes a body and formats the answer; `requests` and `answers` do the work between.
"""
