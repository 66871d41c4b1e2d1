"""Values that the log, the ledger and the tasks share, and their JSON. No I/O."""
