"""Records on disk, and plans found in them again. Read ``database`` first."""
