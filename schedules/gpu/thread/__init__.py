"""The work of one thread: its position, its loads, its waits and its messages to others."""
