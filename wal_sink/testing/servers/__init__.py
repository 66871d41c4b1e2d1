"""What all servers of the test kit have in common: how they are started, killed, paused and ended."""
