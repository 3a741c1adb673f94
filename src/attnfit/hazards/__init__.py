"""The catalogue of hazards: what breaks a launch, what it prints, why, and what to do. Pure but for reading it."""

from attnfit.hazards.catalogue import Catalogue, catalogue, find
from attnfit.hazards.match import Hit, Near, matches
from attnfit.hazards.record import Evidence, Record, Remedy, Signature

__all__ = ["Catalogue", "Evidence", "Hit", "Near", "Record", "Remedy", "Signature", "catalogue", "find", "matches"]
