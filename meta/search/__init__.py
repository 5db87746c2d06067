"""``tune`` and the loop of a search. Read ``tune`` first."""
