"""`isonomy demo`: a whole federation on one machine, from keys to report.

`run.run_demo` plays all parties as processes of their own; `containers` does the same across the
containers of docker-compose.yml. `worker` is the company's script, and worth reading as an example.
Only the command and the benchmark of sessions enter here.
"""
