"""A file of requests in OpenAI's batch format, sent to a server, and the file of their answers.

Knows HTTP and the two files; neither starts a server nor knows an engine.
"""
