-- The statements of the runtime on PostgreSQL. What changes jobs is a function with pinned plans (see migrations).

-- name: send_plain
-- Insert messages from outside of jobs, without dedup keys and with at most one mailbox. Returns: id, in order.
-- An array that is null has the usual value in each place, here and below.
insert into agentrt.jobs(agent, key, priority, created_at, run_after, max_attempts, payload, watched, deadline)
select u.a, u.k, coalesce(u.p, 5::int2), c.now, coalesce(u.t, c.now + make_interval(secs => coalesce(u.s, 0))), u.m, u.b::json,
       coalesce(u.w, false), c.now + make_interval(secs => u.d)
  from (select agentrt.agentrt_now() as now offset 0) c
 cross join unnest(:agents::text[], :keys::text[], :priorities::int2[], :delays::float8[], :run_ats::timestamptz[],
              :max_attempts::int[], :payloads::text[], :watched::boolean[], :deadlines::float8[])
       with ordinality u(a, k, p, s, t, m, b, w, d, o)
 order by u.o
returning id;

-- name: send_where_free
-- As send_plain, of messages with mailboxes, those of one side by side. Returns: id, in order; null: somebody's transaction holds the
-- mailbox, and the message was not stored.
select id from agentrt.send_where_free(:agents::text[], :keys::text[], :priorities::int2[], :delays::float8[],
                                       :run_ats::timestamptz[], :max_attempts::int[], :payloads::text[], :watched::boolean[],
                                       :deadlines::float8[]) id;

-- name: send_one
-- As send_plain, one message: without arrays it takes a tenth less. Returns: id.
insert into agentrt.jobs(agent, key, priority, run_after, max_attempts, payload, watched, deadline)
values (:agent::text, :key::text, :priority::int2,
        coalesce(:run_at::timestamptz, agentrt.agentrt_now() + make_interval(secs => :delay_s::float8)),
        :max_attempts::int, :payload::text::json, :watched::boolean,
        agentrt.agentrt_now() + make_interval(secs => :deadline_s::float8))
returning id;

-- name: send
-- Insert messages with dedup keys or several mailboxes, or as steps of an attempt. Returns: n, id, existed, in order; taken,
-- key_state, deadline_s, leased_s (from the statement's beginning) of one that was handed over; no row: the attempt has lost its job.
select * from agentrt.send(:agents::text[], :keys::text[], :priorities::int2[], :delays::float8[], :run_ats::timestamptz[],
                           :max_attempts::int[], :payloads::text[], :dedups::text[], :deadlines::float8[], :watched::boolean[],
                           :parent, :fence, :steps::text[], :asks::boolean[], :timeouts::float8[], :fingerprints::text[],
                           :places::text[], :supervisor, :lease, :attempts, :floors::bigint[]);

-- name: send_shared
-- As send, of one message each of several attempts, without dedup keys, those of a mailbox side by side. Returns: id, existed, alone, in
-- order; id null: the attempt has lost its job, or the message must go alone.
select * from agentrt.send_shared(:parents::bigint[], :fences::bigint[], :steps::text[], :fingerprints::text[], :places::text[],
                                  :agents::text[], :keys::text[], :priorities::int2[], :delays::float8[], :run_ats::timestamptz[],
                                  :max_attempts::int[], :payloads::text[], :watched::boolean[], :deadlines::float8[], :asks::boolean[],
                                  :timeouts::float8[]);

-- name: relay
-- Finish and send in one round trip. Returns: a row with the ids accepted, then the columns of `send`; id null: it has lost its job.
select * from agentrt.relay(:ids::bigint[], :fences::bigint[], :states::text[], :results::text[], :reasons::text[],
                            :kinds::text[], :texts::text[], :tracebacks::text[], :counts::boolean[], :key_states::text[],
                            :agents::text[], :priorities::int2[], :max_attempts::int[], :payloads::text[], :deadlines::float8[],
                            :watched::boolean[], :parent, :fence, :steps::text[], :fingerprints::text[], :places::text[],
                            :supervisor, :lease, :attempts, :floors::bigint[]);

-- name: claim
-- Lease ready jobs to a supervisor. Returns: the jobs, unordered, with their recorded steps.
select * from agentrt.claim(:supervisor, :agents::text[], :limits::int[], :global::int[], :max_attempts::int[],
                            :leases::float8[], :floors::bigint[], :total, :alone);

-- name: floors
-- Where the ready jobs of these agents begin. Returns: one array, ten numbers an agent (null: none is ready).
select agentrt.floors(:agents::text[]);

-- name: finish
-- Move ended jobs to history under their fences. Returns: the ids accepted.
select * from agentrt.finish(:ids::bigint[], :fences::bigint[], :states::text[], :results::text[], :reasons::text[],
                             :kinds::text[], :texts::text[], :tracebacks::text[], :counts::boolean[], :key_states::text[],
                             :reopen_ids::bigint[], :reopen_steps::text[], :keyed, :limited);

-- name: turn
-- Finish and claim in one round trip. Returns: a row with the ids accepted, then the claimed jobs.
select * from agentrt.turn(:ids::bigint[], :fences::bigint[], :states::text[], :results::text[], :reasons::text[],
                           :kinds::text[], :texts::text[], :tracebacks::text[], :counts::boolean[], :key_states::text[],
                           :reopen_ids::bigint[], :reopen_steps::text[], :keyed::text[], :limited, :supervisor, :agents::text[],
                           :limits::int[], :global::int[], :max_attempts::int[], :leases::float8[], :floors::bigint[], :total,
                           :alone);

-- name: finished_by
-- Which of these attempts are in history already. Returns: id. Asked when the answer to `finish` was lost.
select h.id from unnest(:ids::bigint[], :fences::bigint[]) u(id, fence)
  join agentrt.history h on h.id = u.id and h.fence = u.fence;

-- name: reschedule
-- Give jobs back, at once or later, under their fences. Returns: the ids accepted.
select * from agentrt.reschedule(:ids::bigint[], :fences::bigint[], :delays::float8[], :counts::boolean[], :loose::boolean[],
                                 :reasons::text[], :kinds::text[], :texts::text[], :tracebacks::text[], :reopen_ids::bigint[],
                                 :reopen_steps::text[], :keyed, :limited);

-- name: park
-- Put waiting jobs to sleep under their fences. Returns: the ids accepted.
select * from agentrt.park(:ids::bigint[], :fences::bigint[], :waits::float8[], :wait_ids::bigint[], :wait_steps::text[],
                           :limited);

-- name: record
-- Record steps under their jobs' fences. Returns: n, owned, done, output, failure, due_s, child, exceeded, in order.
select * from agentrt.record(:ids::bigint[], :fences::bigint[], :steps::text[], :kinds::text[], :dones::boolean[],
                             :outputs::text[], :failures::text[], :fingerprints::text[], :places::text[], :waits::float8[],
                             :tries::int[], :usd::text[], :tokens::bigint[], :covered_usd::text[], :covered_tokens::bigint[]);

-- name: await_job
-- Wait as a step for a job that exists. Returns: owned, done, output, failure, due_s, child (null: no such job).
select * from agentrt.await_job(:id, :fence, :step, :child, :timeout, :fingerprint, :place);

-- name: answers
-- What steps that are waited for have become. Returns: job_id, step, output, failure of the answered ones.
select * from agentrt.answers(:ids::bigint[], :steps::text[]);

-- name: open_decision
-- Ask a question as a step. Returns: owned, id, done, output, failure, due_s.
select * from agentrt.open_decision(:id, :fence, :step, :fingerprint, :place, :question, :options::text[], :who::text[],
                                    :fallback, :within);

-- name: decide
-- Answer a question. Returns: verdict and the question; no row: there is none.
select * from agentrt.decide(:id, :option, :by);

-- name: decisions
-- The questions that are open. Returns: rows as of `decision`, oldest first.
select d.id, d.job_id, d.step, d.question, d.options, d.who, d.fallback, d.expires, d.answer, d.answered_by, d.answered_at,
       d.created_at, false as expired, (select j.agent from agentrt.jobs j where j.id = d.job_id) as agent
  from agentrt.decisions d
 where d.answer is null and (d.expires is null or d.expires > agentrt.agentrt_now())
   and exists (select 1 from agentrt.jobs j where j.id = d.job_id)
 order by d.id limit :limit;

-- name: decision
-- A question by its id. Returns: its row, with the agent that asked it (null: its job has ended); no row: there is none.
select d.id, d.job_id, d.step, d.question, d.options, d.who, d.fallback, d.expires, d.answer, d.answered_by, d.answered_at,
       d.created_at, coalesce(d.expires <= agentrt.agentrt_now(), false) as expired,
       (select j.agent from agentrt.jobs j where j.id = d.job_id) as agent
  from agentrt.decisions d where d.id = :id;

-- name: count_decisions
-- How many questions are open.
select count(*)::text from agentrt.decisions d
 where d.answer is null and (d.expires is null or d.expires > agentrt.agentrt_now())
   and exists (select 1 from agentrt.jobs j where j.id = d.job_id);

-- name: open_budget
-- Give a running job its budget. Returns: account, deadline_s; no row: the attempt has lost its job.
select * from agentrt.open_budget(:id, :fence, :usd, :tokens, :jobs, :hops, :wall, :ask);

-- name: reserve
-- Set aside before spending. Returns: owned, exceeded.
select * from agentrt.reserve(:id, :fence, :usd, :tokens);

-- name: settle
-- Correct a reservation. Returns: the text of an account that is used up, or null.
select agentrt.settle(:id, :usd, :tokens);

-- name: extend_budget
-- Grant once more what was granted at first, once a question.
select agentrt.extend_budget(:account, :job_id, :step);

-- name: renew
-- Renew leases. Returns: the ids still owned.
select * from agentrt.renew(:ids::bigint[], :fences::bigint[], :leases::float8[]);

-- name: sweep
-- Take back lost jobs. Returns: made_ready, ended, next_s.
select * from agentrt.sweep(:limit, :dead);

-- name: due
-- Make due jobs ready. Returns: moved, next_s.
select * from agentrt.due(:limit);

-- name: cancel_requests
-- Which of these running jobs shall be cancelled. Returns: id, fence, reason.
select * from agentrt.cancel_requests(:ids::bigint[]);

-- name: cancel
-- Cancel a job, and with `tree` those it waits for. Returns: what is true now, null for no such job.
select agentrt.cancel(:id, :reason, :tree);

-- name: retry
-- Run an ended job again. Returns: its state now, 'no step' when it has no step :from_step, null for no such job.
select agentrt.retry(:id, :from_step);

-- name: way_to
-- A job and those above it, the first of the tree first. Returns: id, agent.
with recursive up(id, agent, parent, depth) as (
  select a.id, a.job_type, a.parent, 0 from agentrt.all_jobs a where a.id = :id
  union all
  select a.id, a.job_type, a.parent, up.depth + 1 from up join agentrt.all_jobs a on a.id = up.parent where up.depth < 200)
select id, agent from up order by depth desc;

-- name: was_issued
-- Whether the sequence of the jobs' ids has reached this one.
select :id::bigint between 1 and last_value and is_called as issued from agentrt.jobs_id_seq;

-- name: results
-- How jobs stand, and mark the unfinished as waited for. Returns: id, agent, state, result, reason, error.
select * from agentrt.results(:ids::bigint[]);

-- name: beat
-- Show that a supervisor lives, and ring its own bell. Returns: ready, unknown, unknown_jobs, unrung, ahead.
select * from agentrt.beat(:supervisor, :host, :pid, :agents::text[], :slots, :limits, :state, :told::text[], :names_max);

-- name: set_quiet
-- Say whether a supervisor looks by itself and need not be rung, and whether that is because enough others listen. Returns: nothing.
update agentrt.supervisors set quiet = :quiet, standby = :standby
 where id = :supervisor and (quiet, standby) <> (:quiet::boolean, :standby::boolean);

-- name: horizon
-- Of the transactions with a number: the oldest that is under way, and what the next one gets.
select pg_snapshot_xmin(s)::text::bigint as oldest, pg_snapshot_xmax(s)::text::bigint as next from pg_current_snapshot() s;

-- name: leave
-- A supervisor ends. Returns: nothing.
delete from agentrt.supervisors where id = :supervisor;

-- name: tidy_leases
-- Remove renewals that nobody owns. Returns: how many.
select agentrt.tidy_leases();

-- name: ensure_days
-- Make the history partitions of the coming days. Returns: how many were made.
select agentrt.ensure_days(:days);

-- name: prune
-- Remove one batch of what ended long ago. Returns: removed, spared, days, and where to go on; no row: another process does it.
select * from agentrt.prune(:keep, :limit, :partly, :partition, :after, :mode);

-- name: job
-- One job with all that is kept of it. Returns: a row of all_jobs, or none.
select * from agentrt.all_jobs where id = :id;

-- name: attempts_of
-- The attempts of a job that did not succeed, first first.
select attempt, fence, supervisor, reason, kind, text, traceback, claimed_at, ended_at
  from agentrt.attempts where job_id = :id order by fence;

-- name: steps_of
-- The recorded steps of a job, first first. state: done, failed, waits, or again (it failed, and the next attempt tries it anew).
select step, kind, done,
       case when done then case when failure is null then 'done' else 'failed' end
            when kind = 'sleep' and due <= agentrt.agentrt_now() then 'done'
            when kind = 'step' and due is null then 'again' else 'waits' end as state,
       fence, output::text as output, failure::text as failure, fingerprint, place, due, tries, child, usd, tokens, recorded_at
  from agentrt.steps where job_id = :id order by seq;

-- name: waits_of
-- The steps that a job waits for, first first, with what answers them. Returns: up to :limit rows; waits: how many there are.
select s.step, s.kind, s.tries, s.failure::text as failure, s.child, c.agent as child_agent, c.status as child_state,
       d.id as decision, d.question, extract(epoch from s.due - agentrt.agentrt_now())::float8 as due_in_s,
       count(*) over () as waits
  from agentrt.steps s
  left join agentrt.jobs c on c.id = s.child
  left join agentrt.decisions d on d.job_id = s.job_id and d.step = s.step and d.answer is null
 where s.job_id = :id and not s.done and (s.kind in ('ask', 'decide') or s.due > agentrt.agentrt_now())
 order by s.seq limit :limit;

-- name: trace_jobs
-- The jobs of the conversation that a job belongs to, the oldest :limit, with what their steps spent and the budget that each has.
-- began_at: the earliest sign of a run. Returns: rows in the order of their ids; none: there is no such job.
with asked as (
  select coalesce(a.root, a.id) as root
    from (select id, root from agentrt.jobs where id = :id union all select id,
    root from agentrt.history where id = :id) a limit 1),
tree as (
  select id, agent, key, status as state, parent, root, hops, attempt, max_attempts, null::text as reason, last_error, created_at,
         claimed_at, null::timestamptz as finished_at
    from agentrt.jobs where id = (select root from asked) or root = (select root from asked)
  union all
  select id, agent, key, state, parent, root, hops, attempt, max_attempts, reason, last_error, created_at, claimed_at, finished_at
    from agentrt.history where id = (select root from asked) or root = (select root from asked))
select t.*, s.usd, s.tokens,
       least(t.claimed_at, s.recorded_at, (select min(a.claimed_at) from agentrt.attempts a where a.job_id = t.id)) as began_at,
       agentrt.agentrt_now() as now, b.id is not null as has_budget, b.usd as budget_usd, b.usd_max, b.tokens as budget_tokens,
       b.tokens_max, b.jobs as budget_jobs, b.jobs_max
  from (select * from tree order by id limit :limit) t
  left join lateral (select sum(k.usd) as usd, sum(k.tokens)::bigint as tokens, min(k.recorded_at) as recorded_at
                       from agentrt.steps k where k.job_id = t.id) s on true
  left join agentrt.budgets b on b.id = t.id
 order by t.id;

-- name: trace_steps
-- The steps of these jobs, up to :limit. Returns: job_id, step, kind, state (see steps_of), tries, child, usd, tokens.
select job_id, step, kind,
       case when done then case when failure is null then 'done' else 'failed' end
            when kind = 'sleep' and due <= agentrt.agentrt_now() then 'done'
            when kind = 'step' and due is null then 'again' else 'waits' end as state,
       tries, child, usd, tokens
  from agentrt.steps where job_id = any(:ids::bigint[]) order by job_id, seq limit :limit;

-- name: unfinished
-- Unfinished jobs of these agents that have recorded steps, those after the id :after, up to :limit. Returns: rows as of a claim.
select j.id, j.fence, j.agent, j.key, j.attempt + case when j.status = 'running' then 0 else 1 end as attempt,
       coalesce(j.max_attempts, 1) as max_attempts, j.payload::text as payload, j.priority, j.ord, coalesce(j.root, j.id) as root,
       j.hops, null::float8 as deadline_s, j.account, j.alone, 0::float8 as lease_s, 0::float8 as waited_s,
       (select t.value::text from agentrt.states t where t.agent = j.agent and t.key = j.key) as state,
       agentrt.steps_json(j.id, agentrt.agentrt_now()) as steps
  from agentrt.jobs j
 where j.agent = any(:agents::text[]) and j.id > :after and j.fence > 0
   and exists (select 1 from agentrt.steps s where s.job_id = j.id)
 order by j.id limit :limit;

-- name: jobs
-- The newest jobs that match; null matches all. Returns: rows of all_jobs without payload and result.
select id, job_type, status, state, key, priority, attempt_count, max_attempts, created_at, run_after, claimed_at, finished_at,
       owner_id, lease_expires, reason, last_error, parent, root
  from agentrt.all_jobs
 where (:state::text is null or state = :state or status = :state) and (:agent::text is null or job_type = :agent)
   and (:key::text is null or key = :key)
 order by id desc limit :limit;

-- name: counts
-- How many unfinished jobs an agent has in each state, and how many ended in the last hour. Returns: agent, state, count.
select agent, status as state, count(*) as count from agentrt.jobs group by 1, 2
union all
select agent, state, count(*) from agentrt.history
 where finished_at > (select agentrt.agentrt_now() - interval '1 hour') group by 1, 2
order by 1, 2;

-- name: supervisors
-- The supervisors that were seen in the last day, with the seconds since their last beat.
select id, host, pid, agents, slots, state, started_at,
       extract(epoch from agentrt.agentrt_now() - beat_at)::float8 as silent_s
  from agentrt.supervisors order by started_at;

-- name: standing
-- What a job's answer to `why` is made of. Returns: one row, or none for a job that is not unfinished.
-- Of the workers that know its agent: `full_workers` run as many of it as their concurrency allows, `busy_workers` have no
-- free slot, `closed_workers` are either.
select j.id, j.agent, j.key, j.status as state, j.attempt, j.max_attempts, j.last_error, j.cancel_reason,
       extract(epoch from j.run_after - agentrt.agentrt_now())::float8 as due_in_s,
       extract(epoch from greatest(j.lease_expires, l.expires) - agentrt.agentrt_now())::float8 as lease_left_s,
       s.host, s.pid, extract(epoch from agentrt.agentrt_now() - s.beat_at)::float8 as silent_s,
       (select h.id from agentrt.jobs h where h.agent = j.agent and h.key = j.key and h.kseq < j.kseq
         order by h.kseq limit 1) as head_id,
       (select count(*) from agentrt.jobs q where q.agent = j.agent and q.status = 'ready' and not q.alone
           and (q.priority, q.ord) < (j.priority, j.ord)) as ahead,
       (select count(*) from agentrt.jobs r where r.agent = j.agent and r.status = 'running') as running,
       w.*
  from agentrt.jobs j
  left join agentrt.leases l on l.job_id = j.id and l.fence = j.fence
  left join agentrt.supervisors s on s.id = j.supervisor
 cross join lateral (
       select count(*) as workers, min(k.most) as running_max,
              count(*) filter (where k.mine >= k.concurrency) as full_workers, sum(k.mine)::int as mine,
              count(*) filter (where k.used >= k.slots) as busy_workers, sum(k.slots)::int as slots,
              count(*) filter (where k.mine >= k.concurrency or k.used >= k.slots) as closed_workers
         from (select (k.limits -> j.agent ->> 'limit')::int as most, (k.limits -> j.agent ->> 'concurrency')::int as concurrency,
                      k.slots, count(r.id) as used, count(r.id) filter (where r.agent = j.agent) as mine
                 from agentrt.supervisors k left join agentrt.jobs r on r.supervisor = k.id and r.status = 'running'
                where j.agent = any(k.agents) and k.beat_at > agentrt.agentrt_now() - interval '30 s'
                group by k.id) k) w
 where j.id = :id;

-- ---- doctor

-- name: doctor_server
-- The server as this session sees it; needs no tables. Returns: one row.
select current_setting('server_version_num')::int as version_num, current_setting('server_version') as version,
       clock_timestamp() as now, pg_is_in_recovery() as standby, current_setting('autovacuum')::boolean as autovacuum,
       current_setting('default_transaction_isolation') as isolation,
       pg_notification_queue_usage()::float8 as queue_usage,
       pg_has_role(current_user, 'pg_read_all_stats', 'usage') as sees_all;

-- name: doctor_transactions
-- Transactions of this database that have been open for :older_s seconds and more, the oldest 20 first.
select pid, usename as role, application_name as application, state,
       extract(epoch from clock_timestamp() - xact_start)::float8 as open_s
  from pg_stat_activity
 where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
   and xact_start < clock_timestamp() - make_interval(secs => :older_s::float8)
 order by xact_start limit 20;

-- name: doctor_ring
-- Ring the bell with a token of the caller's. Returns: nothing. Supervisors ignore a bell that is not their own.
select pg_notify('agentrt' || '.bell', :token::text);

-- name: doctor_jobs
-- Work that lies about for more than :late_s seconds, and the state of the jobs table. Returns: one row.
-- The moment is a scalar query, so that the partial index on run_after can be asked for it.
with late as (select agentrt.agentrt_now() - make_interval(secs => :late_s::float8) as moment)
select l.lost, l.lost_since_s, d.due, d.due_since_s, coalesce(t.n_dead_tup, 0) as dead, coalesce(t.n_live_tup, 0) as live,
       extract(epoch from now() - coalesce(greatest(t.last_vacuum, t.last_autovacuum),
               (select max(applied_at) from agentrt.migrations)))::float8 as vacuumed_s
  from (select count(*) as lost,
               extract(epoch from agentrt.agentrt_now() - min(greatest(j.lease_expires, r.expires)))::float8 as lost_since_s
          from agentrt.jobs j left join agentrt.leases r on r.job_id = j.id and r.fence = j.fence
         where j.status = 'running' and greatest(j.lease_expires, r.expires) < (select moment from late)) l,
       (select count(*) as due, extract(epoch from agentrt.agentrt_now() - min(run_after))::float8 as due_since_s
          from agentrt.jobs where status = 'scheduled' and run_after < (select moment from late)) d
  left join pg_stat_all_tables t on t.relid = 'agentrt.jobs'::regclass;
