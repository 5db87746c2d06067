"""What a target has: limits, pipes, and what a step costs on them. Read ``limits`` first."""
