"""What transformers' config classes make of a config.json, from tables: no transformers is imported.

Engines build on these classes, so every engine's way from config.json to numbers starts here. Standard library only:
it runs inside the witness's child process too.
"""
