"""The choice of a plan: a record of a near shape, else the default. Read ``plan_of`` first."""
