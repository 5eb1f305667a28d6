"""Bases of several families: contractions, and convolutions in any number of axes."""
