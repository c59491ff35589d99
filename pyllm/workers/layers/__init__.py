"""The layers of models, each as one rank's share.

They know no model and no file.
"""
