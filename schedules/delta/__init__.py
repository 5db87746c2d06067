"""The delta rule in chunks: read ``rule``, then ``chunk``, which ``cpu`` and ``gpu`` run."""
