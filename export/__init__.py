"""Turns a training run into an artifact: folded, proven equal to the network, written atomically."""
