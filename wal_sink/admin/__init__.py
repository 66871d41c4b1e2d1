"""What an operator does to a query's log and ledger, for the most part when the flush has stopped (rule 22).

`verify`, `inspect` and `quarantine` only read; `flush` hosts a flusher; `skip`, `adopt`, `rewind`, `detach`
and `attach` change the state. These have one shape: `plan_…` checks that the change can
be made, and returns it; the change says its `consequences`, and `carry_out` makes it. Their order of writes
lets each be run again after it died: docs/protocol/operators.md.
"""
