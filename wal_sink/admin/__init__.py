"""What an operator does to a query's log and ledger when the line has stopped (rule 22).

`verify` and `inspect` only look; `flush` and `trim` do what a flusher does. The others are the ways out.
All of them keep to three sentences:

*Written down first.* The record of a decision is durable in the log before anything follows from it. So a
command that dies in the middle is run again, and goes on; and nothing is skipped that no record explains.

*The ledger row moves from the state that was seen*, by compare-and-set, or not at all. So no command can
undo what a flusher did meanwhile, wherever it runs.

*The flusher does the flushing.* An epoch that is given up is begun and finished by it, without rows. A
rewind gives it older epochs to flush. No command but `flush`, which hosts one, writes a row, or moves the
mark forward over one.

A flusher that is alive is no danger to these, but it may be about to succeed with what is given up. So
`set-aside` and `adopt` want it to have stopped at an error; `rewind` wants none at all, since it would
trim what was restored for it; those that look, `flush`, `trim` and `accept-gap` (nothing is there that
could be flushed) do not mind.
"""
