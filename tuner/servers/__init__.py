"""Server programs that run on a host: engines that ship no command line of their own."""
