"""Values that the log, the ledger and the tasks share, and their JSON form. No I/O."""
