"""Wraps the Cassandra driver.

====================  ==================================================================
`requests_in_flight`  sends requests in groups, and awaits their answers
`concurrency`         limits the requests in flight
`connection`          connects: execution profiles, login and TLS
`frames`              makes the frames of requests from encoded rows
`errors`              classifies exceptions, and sends requests with a deadline
`internals`           wraps undocumented parts of the driver
====================  ==================================================================
"""
