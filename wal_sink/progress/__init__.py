"""How far a query's flush is, from log and checkpoint alone; never connects to the target."""
