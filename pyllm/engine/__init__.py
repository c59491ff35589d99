"""The engine inside a program: `LLM`, `AsyncEngine`, `LLMEngine`, and the processes below them.

Knows no HTTP and no command line. Programs import these names from `pyllm`.
"""
