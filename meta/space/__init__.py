"""What a search may decide, and MetaSchedule's view of it. Read ``decisions`` first."""
