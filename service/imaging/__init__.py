"""Bytes to pixels to PNG. Pillow and numpy; no runtime, no web framework."""
