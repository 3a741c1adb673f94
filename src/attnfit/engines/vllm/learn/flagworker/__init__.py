"""The child process that reads a release's flags; see `__main__`. Run, not imported, by `learn.flags`."""
