"""The witness: a release's own code, run straight from its source files in an isolated child process.

Here is what every engine shares: finding the source files (`sources`), the child (`client`, `worker`, `isolate`), and
loading engine code with nothing else installed (`loader`). What an engine is asked lies in its own folder.

Everything here except `client`, `sources` and what these use is standard library only and imports nothing of attnfit
outside this package: it runs inside the child.
"""
