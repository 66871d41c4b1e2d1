"""Wraps the Cassandra driver.

====================  ==================================================================
`requests_in_flight`  sends requests in groups, and awaits their answers
`concurrency`         limits the requests in flight
`connection`          connects: execution profiles, login and TLS
`frames`              makes the frames of requests from encoded rows
`requests`            sends single requests with a deadline, and repeats requests
`errors`              classifies exceptions
`internals`           wraps undocumented parts of the driver
====================  ==================================================================
"""
