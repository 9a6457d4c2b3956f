"""Serves folded networks over HTTP: bytes -> image -> queue -> session -> response. No torch here."""
