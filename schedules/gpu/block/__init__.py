"""Trees over the threads of a block. Read ``trees`` first; ``blelloch`` sweeps up and down."""
