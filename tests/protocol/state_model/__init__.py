"""Explores every order of steps over the transitions of `wal_sink/protocol/state.py`, breadth first.

`docs/protocol/model.md` has what is modelled and what is not. `python -m tests.protocol.state_model` prints
the tables of settings and of switches.
"""
