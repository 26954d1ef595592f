"""agentrt beside other queues on PostgreSQL: one run, one server, each library in an environment of its own.

make bench-peers                                           all of it
python -m tests.bench.peers --peers agentrt,pgqueuer --metrics drain,latency
python -m tests.bench.peers --table peers.jsonl            the tables of a run, as markdown
"""
