"""HTTP/1.1 for streams: sockets in an epoll of our own, read as they become ready and pushed on.

``transport`` is the httpx transport; below it, ``poller`` and ``connection`` do the reading, and
``head``, ``body`` and ``stamps`` know what the bytes and the kernel's clock mean.
"""
