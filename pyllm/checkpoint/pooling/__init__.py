"""The way from a prompt's hidden states to an embedding or to scores of classes: pooling, and the layers after it.

Opens no file, and knows no family.
"""
