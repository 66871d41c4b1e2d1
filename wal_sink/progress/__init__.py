"""How far a query's flush is, from log and checkpoint alone. Nothing here connects to a target."""
