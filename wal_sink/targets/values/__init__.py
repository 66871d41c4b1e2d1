"""Values of Arrow columns, for targets of any kind: constants, UUIDs, and as errors show them."""
