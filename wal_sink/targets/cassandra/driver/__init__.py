"""The driver: how to connect, what its errors mean, and how encoded rows get into its batches.

===============  ==================================================================
`connection`     cluster, session and execution profiles
`credentials`    role and password, from options or the environment
`tls`            the TLS context, and the secure connect bundle
`classify`       what an exception means for rows and for the ledger
`retry`          repeats a request while its error may pass
`frames`         batches of encoded rows
`envelope`       the frames of many requests in one buffer
`pipelined`          requests of encoded rows, many by one push
`canary`         whether their answers come as they should
`direct_write`   writes requests without waiting for the driver's thread
`internals`      what the driver's API reference does not list
===============  ==================================================================
"""
