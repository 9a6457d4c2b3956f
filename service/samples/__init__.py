"""Sample images for the page and the examples; README.md lists their sources."""
