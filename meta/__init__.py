"""Tuning: MetaSchedule samples plans, measures them and stores what won."""
