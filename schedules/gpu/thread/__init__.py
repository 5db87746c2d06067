"""What one thread does: where it stands, how it loads, waits and tells others."""
