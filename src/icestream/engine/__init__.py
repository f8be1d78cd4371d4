"""Runs a plan: a thread and a streaming query for each pipeline.

1. `run` starts the pipelines; `runner` is the loop of one: when a batch starts, acknowledgements,
   restarts.
2. `recovery` decides where a start resumes; `state` is the pipeline's state folder.
3. `batch` reads, decodes, writes and commits one batch.
4. `dead_letters` finds, keeps and replays bad rows.

`progress` is what the status shows. `crash_points` are where tests kill the process.
"""
