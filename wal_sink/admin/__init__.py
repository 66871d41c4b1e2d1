"""What an operator does to a query's log and ledger when the flush has stopped (rule 22).

`verify` and `inspect` only look; `flush` hosts a flusher; `skip`, `adopt` and `rewind` change the state.
Those three have one shape: `plan_…` raises what speaks against the change, or returns it; the change says its
`consequences`, and `carry_out` makes it. Their order of writes lets each be run again after it died:
docs/protocol.md#what-operators-do.
"""
