"""Pure statistics of latencies, windows, intervals and fronts."""
