"""The search for plans, and the records that it makes."""
