"""pyllm beside other engines on the same models: speed, and perplexity. `python -m benchmarks.peers FOLDER`."""
