"""The Cassandra driver: connections, the meaning of its errors, and batches of encoded rows.

====================  ==================================================================
`requests_in_flight`  requests in flight, many by one push, and their limit
`connection`          cluster, session, execution profiles and TLS
`frames`              requests of encoded rows, and their frames
`errors`              classes of errors; requests with a deadline
`internals`           what the driver's API reference does not list
====================  ==================================================================
"""
