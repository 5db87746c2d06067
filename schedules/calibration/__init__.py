"""The constants of this machine, measured: read ``calibrate`` first, then ``clock``."""
