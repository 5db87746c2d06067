"""The decisions of a search, and MetaSchedule's view of them. Read ``decisions`` first."""
