"""Writing: from slices of the log to acknowledged requests.

==============  ==================================================================
`writer`        the order of the steps: check for drift, buffer, divide, send, drain
`statements`    the statements of a plan, and which of them writes a row
`batches`       joins small slices; divides rows into requests by partitions and sizes
`sender`        repeats requests that failed, until all are acknowledged
`refusals`      which row a refused request is refused for
`in_flight`     those under way: how many may be, and which go by one push
`drift`         notices that a table is no longer what a plan was made for
==============  ==================================================================
"""
