"""What survives a crash inside a running agent: steps, waits, decisions, transactions, key state, budgets.

branch       which step is which: ids from the path of the task that runs it, and the task factory that keeps the paths
step         a function that runs once; its output, or its failure, is kept
fault        failures as data, and back as what the same `except` clause catches
send         messages of an attempt, each sent once
wait         sleep, and the ends of other jobs
decision     questions that people answer
transaction  the agent's own SQL together with the record of it
key_state    what a keyed agent keeps between its messages
budget       what a tree of jobs may use
"""
