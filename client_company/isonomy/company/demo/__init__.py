"""`isonomy demo`: a whole federation on one machine, from keys to report."""
