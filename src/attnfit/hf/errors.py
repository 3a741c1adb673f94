"""How building a config ends where it does not succeed."""

from __future__ import annotations


class Unknown(Exception):
    """Not decidable from what we know; says what is missing, in a few words a user can act on."""


class Refused(Exception):
    """The config class refuses these keys, with an exception of class `kind` saying `text`, at `where`."""

    def __init__(self, kind: str, text: str, where: str = "") -> None:
        super().__init__(text)
        self.kind, self.text, self.where = kind, text, where
