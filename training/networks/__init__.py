"""The paper's networks, and how large they are."""
