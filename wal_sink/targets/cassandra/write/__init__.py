"""From slices of the log to acknowledged requests.

==============  ==================================================================
`batches`       joins slices, and divides rows into requests by partition and size
`statements`    the statements of a plan, and the statement of each row
`replicas`      the first replica of each partition
`sender`        sends requests, and repeats failed ones until all are acknowledged
`refusals`      finds the rows for which a request is refused
`drift`         detects that a table has changed since a plan was made
==============  ==================================================================
"""
