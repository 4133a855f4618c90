"""Logs of servers, written from what the engines print: a start-up, then a death, then a shape."""
