"""Weights from other frameworks."""
