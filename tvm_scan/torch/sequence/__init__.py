"""Time over several processes: ``exchange``, then ``carries``, and ``delta`` for delta rules."""
