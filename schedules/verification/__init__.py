"""A scan beside its loop, an algebra beside its laws. Read ``verify`` first."""
