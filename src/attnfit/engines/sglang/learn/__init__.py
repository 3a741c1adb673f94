"""Writes the compact form of a release that is shipped (a developer's tool; `check` imports nothing of it)."""
