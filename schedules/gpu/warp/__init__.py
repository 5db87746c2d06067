"""The tree over the threads of a warp, by shuffles."""
