"""The delta rule in chunks of matrix products. Read ``rule`` first."""
