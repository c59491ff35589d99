"""The devices that a rank computes on: the host with numpy, and GPUs with torch.

Other rooms ask a device for what they need, and not which it is.
"""
