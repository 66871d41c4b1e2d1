"""Writing: from slices of the log to acknowledged requests.

==============  ==================================================================
`writer`        the order of the steps: check for drift, buffer, divide, send, drain
`statements`    the statements of a plan, and which of them writes a row
`batches`       joins small slices; divides rows into requests by partitions and sizes
`replicas`      which node has a partition
`sender`        repeats requests that failed, until all are acknowledged
`refusals`      the rows for which a request is refused
`in_flight`     the requests that have not ended, and which go by one push
`concurrency`   the number of requests that may be in flight
`drift`         notices that a table has changed since a plan was made
==============  ==================================================================
"""
