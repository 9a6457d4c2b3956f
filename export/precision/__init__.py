"""Writes the INT8 file. fp16 is written by `graph.py`."""
