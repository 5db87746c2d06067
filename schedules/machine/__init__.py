"""What a target has: limits, pipes, and what a step costs on them. Read ``machine`` first."""
