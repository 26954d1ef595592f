"""agentrt beside other queues on PostgreSQL: one run, one server, each library in an environment of its own.

    make bench-peers                                                      all of it, half an hour
    python -m tests.bench.peers --quick                                   all of it, small: do they all run?
    python -m tests.bench.peers --peers agentrt,pgqueuer --metrics drain,latency --database postgresql://…
    python -m tests.bench.peers --table peers.jsonl                       the tables of a run, as markdown

The environments are made on first use with the newest releases (delete the folder to have them made anew). agentrt is the
checkout that runs the comparison. What cannot be measured is a line with the reason, and the run goes on.

Measured, with medians and spreads (min–max) of all repetitions, which alternate between the peers:

- enqueue: one after the other, 50 producers (a pool of 20 connections where there are pools), the bulk API.
- drain: one worker through jobs that do nothing and are there when it starts; what a job costs. "As it comes" is the library
  without settings. "Best" is one fixed choice a library (`settings` of its adapter), the best of a few of its documented ones in
  earlier trials on two cores; for agentrt, saq and python-pq it is a guess that no trial stands behind.
- latency: single sends to a worker that has nothing else to do, until the first line of the job.
- pingpong: each job sends the next one from inside. steps: durable steps, where there are any.
- idle: what a worker with nothing to do costs. crash: kill -9 of one of two workers, leases and heartbeats as they come.
- backlog: many pending and many finished rows, copied by SQL in the library's own shape; the first 1,000 jobs are not counted.

agentrt's "as it comes" is `agentrt run MODULE`: log level info writes lines for each job. Its best has log level warning, and
for throughput more slots. `other_cpu` of a result says how many cores anything else used meanwhile: over 0.1 or so the numbers
are not to be trusted. What a job does, its payload and the clock are the same for all.

What a peer is not made for, and so what its numbers do not say:

- pgqueuer, procrastinate, oban, saq, awa, chancy and python-pq are job queues: no durable steps, so nothing there.
- DBOS is made for durable workflows: its job is one, checkpointed, and it costs more than a row. Its queue is polled. Without its
  Conductor, jobs of a killed process wait for a process of the same name, or for a call of its recovery API.
- absurd keeps all its logic in the database, for thin SDKs in any language; it polls, and starts no batch before the last
  one has ended. Neither it nor DBOS nor saq nor python-pq has a bulk API.
- chancy is made for jobs in processes; here it has its asyncio executor. It writes ends back once a second, and without
  `eager_polling` takes jobs only at a notice or a poll.
- procrastinate takes one job with each claim, and runs a job again after a crash only with the cron task of its manual, which
  is added for crash alone.
- oban takes back jobs of a dead node after 300 s, awa and absurd after two minutes: their numbers in crash are that choice.
  saq gives up a job whose worker died, unless told to retry.
- python-pq is synchronous, with a forked child a job, at most once: safe for code that leaks or crashes, not fast. In crash its
  children outlive the killed worker and finish, so nothing is started again, but their rows stay unfinished.
- pgtask and awa have a core in Rust with Python handlers. awa's storage is no table of jobs: its drain ends with the last
  handler, and no backlog can be copied for it.
- The baseline, `for update skip locked` every 500 ms, holds a transaction open while the job runs.
"""
