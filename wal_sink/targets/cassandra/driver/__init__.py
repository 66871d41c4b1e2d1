"""The driver: how to connect, what its errors mean, and how encoded rows get into its batches.

==============  ==================================================================
`connection`    cluster, session, execution profiles and TLS
`errors`        what an exception means, and requests that are repeated while it may pass
`frames`        requests of encoded rows, and the frames of many in one buffer
`pipeline`      the requests in flight, of which many go by one push
`concurrency`   how many may be in flight
`internals`     what the driver's API reference does not list
==============  ==================================================================
"""
