"""Writing: from slices of the log to acknowledged requests.

==============  ==================================================================
`statements`    the statements of a plan, and which of them writes a row
`batches`       joins small slices; divides rows into requests by partitions and sizes
`replicas`      which node has a partition
`sender`        sends groups of requests, and repeats those that failed until all are acknowledged
`refusals`      the rows for which a request is refused
`drift`         notices that a table has changed since a plan was made
==============  ==================================================================
"""
