"""Threads that walk time, several to a lane or in chunks. Read ``shared_lanes`` first."""
