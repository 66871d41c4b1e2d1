"""The Cassandra driver: connections, the meaning of its errors, and batches of encoded rows.

==============  ==================================================================
`connection`    cluster, session, execution profiles and TLS
`pipeline`      requests in flight, many by one push
`concurrency`   the limit of requests in flight
`frames`        requests of encoded rows, and their frames
`errors`        classes of errors; requests with a deadline
`internals`     what the driver's API reference does not list
==============  ==================================================================
"""
