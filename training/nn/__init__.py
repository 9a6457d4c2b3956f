"""Hypercomplex layers that anybody can put into a model. They need torch alone."""
