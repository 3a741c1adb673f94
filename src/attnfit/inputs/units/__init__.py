"""systemd units, read from their files as systemd reads them. Nothing is started and nothing is asked of systemd."""

from attnfit.inputs.units.unit import Unit as Unit
from attnfit.inputs.units.unit import read_unit as read_unit
