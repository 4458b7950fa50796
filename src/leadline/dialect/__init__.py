"""What the dialects of all engines share: reading and writing command lines, telling log lines, counters, memory sums.

Pure. Knows no engine by name; the packages of `leadline.engines` are built on it.
"""
