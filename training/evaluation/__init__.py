"""Scores and pictures of trained networks."""
