"""Writing: from slices of the log to acknowledged requests.

===============  ==================================================================
`writer`         the order of the steps: check for drift, buffer, divide, send, drain
`absent`         rows that are written where there is none of their key
`slice_buffer`   joins small slices
`bind`           values for the driver's own statements, where `driver.frames` cannot be used
`batches`        divides rows into requests, by partitions and sizes
`replicas`       which partitions have the same first replica
`requests`       makes the requests
`refused_row`    takes a request apart, down to the row that the server refuses
`send`           keeps requests in flight, and repeats those that failed
`groups`         which requests go by one push
`in_flight`      those under way: starts them, and hears of their ends
`ended`          how requests have ended
`concurrency`    how many may be in flight
===============  ==================================================================
"""
