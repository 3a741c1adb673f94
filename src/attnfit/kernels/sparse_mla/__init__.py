"""Sparse MLA: attention over the rows of a latent cache that top-k indices name."""
