"""What engines ask of the b12x package (embedded in flashinfer-python 0.7.2; its gating.py:89)."""
