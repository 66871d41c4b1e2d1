"""Writing: from slices of the log to acknowledged requests.

==============  ==================================================================
`writer`        the order of the steps: check for drift, buffer, divide, send, drain
`statements`    the statements of a plan, and which of them writes a row
`prepared`      the requests of rows, and which row a refused request is refused for
`batches`       joins small slices; divides rows by table, and into requests by partitions and sizes
`sender`        repeats requests that failed, until all are acknowledged
`in_flight`     those under way: how many may be, which go by one push, how they ended
`totals`        reads what the table holds, before rows are added to it
==============  ==================================================================
"""
