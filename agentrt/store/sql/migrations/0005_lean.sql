-- Lean: one message is the usual case, and most of what it costs is the start of a query, whatever that then does.

-- ------------------------------------------------------------------------------------------------ the bell

-- As before; to be assigned: a query in a function costs ten times what an expression does.
drop function agentrt.ring();
create function agentrt.ring() returns boolean language plpgsql as $$
begin
  if current_setting('transaction_isolation') <> 'read committed'
     or exists (select 1 from agentrt.supervisors s
                 where not s.quiet and s.alive_at > clock_timestamp() - interval '35 s') then
    perform pg_notify('agentrt' || '.ready', '');
    return true;
  end if;
  return false;
end$$;

create or replace function agentrt.jobs_wake() returns trigger language plpgsql as $$
declare v_rung boolean;
begin
  if tg_argv[0] <> 'ready' then
    perform pg_notify(tg_table_schema || '.' || tg_argv[0], '');
  elsif tg_op <> 'INSERT' or coalesce(current_setting('agentrt_bell.held', true), '') <> 'on' then
    v_rung := agentrt.ring();
  end if;
  return null;
end$$;

-- The condition of a trigger is read and planned anew by each statement, so these are short: the functions look closer.
drop trigger jobs_wake on agentrt.jobs;
create trigger jobs_wake after insert on agentrt.jobs for each statement execute function agentrt.jobs_wake('ready');

create or replace function agentrt.jobs_delay() returns trigger language plpgsql as $$
begin
  if new.run_after > agentrt.agentrt_now() then
    new.status := 'scheduled';
    perform pg_notify(tg_table_schema || '.due', '');
  end if;
  return new;
end$$;
drop trigger jobs_delay on agentrt.jobs;
create trigger jobs_delay before insert on agentrt.jobs
  for each row when (new.key is null and (new.run_after <> new.created_at or new.created_at > clock_timestamp()))
  execute function agentrt.jobs_delay();

-- ------------------------------------------------------------------------------------------------ send

-- As before; one message is stored without the detour over rows of arrays, and no ask that waits for a mailbox holds up all others.
create or replace function agentrt.send(
  p_agents text[], p_keys text[], p_priorities int2[], p_delays float8[], p_run_ats timestamptz[], p_max_attempts int[],
  p_payloads text[], p_dedups text[], p_deadlines float8[], p_watched boolean[], p_parent bigint, p_fence bigint, p_steps text[],
  p_asks boolean[], p_timeouts float8[], p_fingerprints text[], p_places text[],
  p_supervisor uuid, p_lease float8, p_attempts int, p_floors bigint[])
returns table(n int, id bigint, existed boolean, taken boolean, key_state text, deadline_s float8, leased_s float8) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  v_parent agentrt.jobs;
  v_one boolean := cardinality(p_agents) = 1;   -- the usual case, worth fewer statements
  v_new bigint[];
  v_known bigint[];  -- the jobs that these steps have sent already: the answer to an earlier call was lost
  v_ids bigint[];    -- what counts for each message: known, or the first of its dedup key, or new
  v_holds boolean;   -- whether anybody may wait for the sender
  v_now timestamptz;
  v_take boolean := false;
  v_held text;
  v_asks boolean := coalesce(true = any(p_asks), false);
  v_waits boolean := p_keys is not null or p_dedups is not null or v_asks;   -- perhaps, for others who send
begin
  if v_one then
    v_new := array[nextval('agentrt.jobs_id_seq')];
  else
    v_new := array(select nextval('agentrt.jobs_id_seq') from generate_subscripts(p_agents, 1));
  end if;
  if v_waits and p_parent is not null then   -- who waits for a mailbox must hold no row
    select * into v_parent from agentrt.jobs j where j.id = p_parent and j.fence = p_fence and coalesce(j.status, '') = 'running';
  elsif p_parent is not null then
    select * into v_parent from agentrt.jobs j where j.id = p_parent and j.fence = p_fence and coalesce(j.status, '') = 'running'
       for share;
  end if;
  if p_parent is not null then
    if not found then
      return;
    end if;
    if v_one then
      v_known := array[(select s.child from agentrt.steps s where s.job_id = p_parent and s.step = p_steps[1])];
    else
      v_known := array(select (select s.child from agentrt.steps s where s.job_id = p_parent and s.step = u.step)
                         from unnest(p_steps) with ordinality u(step, o) order by u.o);
    end if;
  end if;
  if p_dedups is not null then
    insert into agentrt.dedups(agent, dedup, job_id)
    select u.a, u.d, min(u.i) from unnest(p_agents, p_dedups, v_new, v_known) u(a, d, i, kn) where u.d is not null and u.kn is null
     group by u.a, u.d order by u.a collate "C", u.d collate "C"
    on conflict do nothing;
  end if;
  if p_keys is not null then
    perform agentrt.lock_key(k.a, k.k) from (
      select distinct u.a collate "C" as a, u.k collate "C" as k from unnest(p_agents, p_keys) u(a, k)
       where u.k is not null order by 1, 2) k;
  end if;
  if v_asks and (v_parent.key is not null or v_parent.asked) then   -- after the mailboxes: all asks of the schema wait for this
    perform agentrt.lock_cycles();
  end if;
  if p_parent is not null and v_waits then
    select j.key is not null or j.asked into v_holds from agentrt.jobs j
     where j.id = p_parent and j.fence = p_fence and coalesce(j.status, '') = 'running' for share;
    if not found then   -- it was lost while this waited
      delete from agentrt.dedups x where x.job_id = any(v_new);
      return;
    end if;
  end if;
  v_now := agentrt.agentrt_now();
  if p_dedups is not null then
    v_ids := array(select coalesce(u.kn, (select x.job_id from agentrt.dedups x where x.agent = u.a and x.dedup = u.d), u.i)
                     from unnest(p_agents, p_dedups, v_new, v_known) with ordinality u(a, d, i, kn, o) order by u.o);
  elsif array_remove(v_known, null) <> '{}' then
    v_ids := array(select coalesce(u.kn, u.i) from unnest(v_new, v_known) with ordinality u(i, kn, o) order by u.o);
  else
    v_ids := v_new;
  end if;
  if v_parent.account is not null then
    perform agentrt.charge_jobs(v_parent.account, v_parent.hops + 1,
                                (select count(*)::int from unnest(v_ids, v_new) u(i, n) where u.i = u.n));
  end if;
  if p_supervisor is not null and v_ids[1] = v_new[1] and p_delays is null and p_run_ats is null then
    v_take := not exists (
      select 1 from generate_series(0, coalesce(p_priorities[1], 5)) p
       where (select 1 from agentrt.jobs q
               where q.agent = p_agents[1] and q.priority = p::int2 and q.status = 'ready' and not q.alone
                 and q.ord >= coalesce(p_floors[p + 1], 0) order by q.ord limit 1) is not null);
    if v_take then
      v_held := set_config('agentrt_bell.held', 'on', true);   -- assigned: a query would cost ten times as much
    end if;
  end if;
  if v_one and v_ids = v_new then
    insert into agentrt.jobs(id, agent, key, priority, created_at, run_after, max_attempts, payload, parent, root, hops, deadline,
                             account, watched, asked, status, supervisor, fence, attempt, claimed_at, lease_expires, ord)
    values (v_new[1], p_agents[1], p_keys[1], coalesce(p_priorities[1], 5::int2), v_now,
            least(coalesce(p_run_ats[1], v_now + make_interval(secs => coalesce(p_delays[1], 0))), v_parent.deadline),
            case when v_take then coalesce(p_max_attempts[1], p_attempts) else p_max_attempts[1] end, p_payloads[1]::json,
            p_parent, coalesce(v_parent.root, v_parent.id), coalesce(v_parent.hops + 1, 0),
            least(v_parent.deadline, v_now + make_interval(secs => p_deadlines[1])), v_parent.account,
            coalesce(p_watched[1], false), coalesce(p_asks[1], false),
            case when v_take then 'running' else 'ready' end, case when v_take then p_supervisor end, v_take::int, v_take::int,
            case when v_take then v_now end, case when v_take then v_now + make_interval(secs => p_lease) end,
            case when v_take then 0 else nextval('agentrt.ord_seq') end);   -- 0: it was never ready, so no claim can have taken it
  elsif not v_one then
    insert into agentrt.jobs(id, agent, key, priority, created_at, run_after, max_attempts, payload, parent, root, hops, deadline,
                             account, watched, asked)
    select u.i, u.a, u.k, coalesce(u.p, 5::int2), v_now,
           least(coalesce(u.t, v_now + make_interval(secs => coalesce(u.s, 0))), v_parent.deadline), u.m, u.b::json,
           p_parent, coalesce(v_parent.root, v_parent.id), coalesce(v_parent.hops + 1, 0),
           least(v_parent.deadline, v_now + make_interval(secs => u.dl)), v_parent.account,
           coalesce(u.w, false), coalesce(u.asks, false)
      from unnest(v_ids, v_new, p_agents, p_keys, p_priorities, p_delays, p_run_ats, p_max_attempts, p_payloads, p_deadlines,
                  p_watched, p_asks) with ordinality u(i, n, a, k, p, s, t, m, b, dl, w, asks, o)
     where u.i = u.n order by u.o;
  end if;
  if v_take then
    v_held := set_config('agentrt_bell.held', '', true);
  end if;
  if p_parent is not null then
    if not v_one then
      insert into agentrt.steps(job_id, step, kind, fence, done, output, fingerprint, place, due, child)
      select p_parent, u.step, case when u.asks then 'ask' else 'send' end, p_fence, u.asks is not true,
             case when u.asks is not true then to_json(u.i) end, u.fi, u.pl, v_now + make_interval(secs => u.t), u.i
        from unnest(p_steps, v_ids, v_known, p_asks, p_timeouts, p_fingerprints, p_places) u(step, i, kn, asks, t, fi, pl)
       where u.kn is null;
    elsif v_known[1] is null then
      insert into agentrt.steps(job_id, step, kind, fence, done, output, fingerprint, place, due, child)
      values (p_parent, p_steps[1], case when v_asks then 'ask' else 'send' end, p_fence, not v_asks,
              case when not v_asks then to_json(v_ids[1]) end, p_fingerprints[1], p_places[1],
              v_now + make_interval(secs => p_timeouts[1]), v_ids[1]);
    end if;
    if v_asks and v_ids <> v_new then
      perform agentrt.answer(p_parent, u.step, null, json_build_object(     -- it was pruned since its dedup key was read
                'job', u.i, 'agent', u.a, 'state', 'expired', 'reason', null, 'error', '')::text)
         from unnest(v_ids, v_new, p_asks, p_steps, p_agents) u(i, n, asks, step, a)
        where u.asks and u.i <> u.n and not agentrt.ask_existing(u.i);
    end if;
    if v_asks and (v_holds or p_parent = any(v_ids)) then
      perform agentrt.require_no_cycle(p_parent, u.i) from unnest(v_ids, v_new, p_keys, p_asks) u(i, n, k, asks)
        where u.asks and (u.k is not null or u.i <> u.n);
    end if;
  end if;
  if v_one and (p_supervisor is null or p_keys is null and v_known[1] is null) then
    n := 1;
    id := v_ids[1];
    existed := v_ids[1] <> v_new[1];
    taken := v_take;
    deadline_s := extract(epoch from least(v_parent.deadline - v_now, make_interval(secs => p_deadlines[1])));
    leased_s := extract(epoch from v_now - agentrt.agentrt_now() + (clock_timestamp() - statement_timestamp()));
    return next;
    return;
  end if;
  if p_supervisor is not null then   -- also what an earlier call took, whose answer was lost
    return query
    select 1, v_ids[1], v_ids[1] <> v_new[1], t.id is not null,
           (select s.value::text from agentrt.states s where s.agent = t.agent and s.key = t.key),
           extract(epoch from t.deadline - v_now)::float8,
           extract(epoch from t.claimed_at - agentrt.agentrt_now() + (clock_timestamp() - statement_timestamp()))::float8
      from (select 1) one
      left join lateral (select j.id, j.agent, j.key, j.deadline, j.claimed_at from agentrt.jobs j
                          where (v_take or v_known[1] is not null) and j.id = v_ids[1] and j.fence = 1 and j.ord = 0
                            and j.supervisor = p_supervisor and coalesce(j.status, '') = 'running' offset 0) t on true;
    return;
  end if;
  return query select u.o::int, u.i, u.i <> u.n, false, null::text, null::float8, null::float8
                 from unnest(v_ids, v_new) with ordinality u(i, n, o) order by u.o;
end$$;


-- Store messages from outside whose mailboxes nobody holds, in their order, which is that of the mailboxes; those of one come side by
-- side. It waits for none. Returns an id for each, null for one that was not stored.
create function agentrt.send_where_free(
  p_agents text[], p_keys text[], p_priorities int2[], p_delays float8[], p_run_ats timestamptz[], p_max_attempts int[],
  p_payloads text[], p_watched boolean[], p_deadlines float8[])
returns setof bigint language plpgsql set plan_cache_mode = force_generic_plan as $$
declare
  v_ids bigint[] := '{}';
  v_free boolean;
  v_now timestamptz;
begin
  for n in 1 .. cardinality(p_agents) loop
    if n = 1 or (p_agents[n], p_keys[n]) <> (p_agents[n - 1], p_keys[n - 1]) then   -- one look a mailbox: all of it, or nothing
      v_free := pg_try_advisory_xact_lock(hashtextextended(p_keys[n], hashtextextended(p_agents[n], 0)));   -- see lock_key
    end if;
    v_ids := v_ids || case when v_free then nextval('agentrt.jobs_id_seq') end;
  end loop;
  if array_remove(v_ids, null) <> '{}' then   -- an insert of nothing would ring, too
    v_now := agentrt.agentrt_now();
    insert into agentrt.jobs(id, agent, key, priority, created_at, run_after, max_attempts, payload, watched, deadline)
    select u.i, u.a, u.k, coalesce(u.p, 5::int2), v_now, coalesce(u.t, v_now + make_interval(secs => coalesce(u.s, 0))), u.m,
           u.b::json, coalesce(u.w, false), v_now + make_interval(secs => u.d)
      from unnest(v_ids, p_agents, p_keys, p_priorities, p_delays, p_run_ats, p_max_attempts, p_payloads, p_watched, p_deadlines)
           with ordinality u(i, a, k, p, s, t, m, b, w, d, o)
     where u.i is not null order by u.o;
  end if;
  return query select unnest(v_ids);
end$$;

-- ------------------------------------------------------------------------------------------------ relay

-- Move finished jobs to history, and send a message of an attempt in the same round trip. As `finish`, of jobs without a mailbox, then
-- `send`, of one message without a mailbox. What is finished may be locked by who waits for it, and no message shall wait with it: this
-- then fails with lock_not_available, and has changed nothing. Returns one row: the ids that were accepted, and the message's, null when
-- the attempt has lost its job.
create function agentrt.relay(
  p_ids bigint[], p_fences bigint[], p_states text[], p_results text[],
  p_reasons text[], p_kinds text[], p_texts text[], p_tracebacks text[], p_counts boolean[], p_key_states text[],
  p_agents text[], p_priorities int2[], p_max_attempts int[], p_payloads text[], p_deadlines float8[], p_watched boolean[],
  p_parent bigint, p_fence bigint, p_steps text[], p_fingerprints text[], p_places text[],
  p_supervisor uuid, p_lease float8, p_attempts int, p_floors bigint[])
returns table(accepted bigint[], id bigint, existed boolean, taken boolean, key_state text, deadline_s float8, leased_s float8)
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off
set lock_timeout = '100ms' as $$
#variable_conflict use_column
begin
  accepted := array(
    select agentrt.finish(p_ids, p_fences, p_states, p_results, p_reasons, p_kinds, p_texts, p_tracebacks, p_counts, p_key_states,
                          '{}', '{}', false, false));
  select s.id, s.existed, s.taken, s.key_state, s.deadline_s, s.leased_s into id, existed, taken, key_state, deadline_s, leased_s
    from agentrt.send(p_agents, null, p_priorities, null, null, p_max_attempts, p_payloads, null, p_deadlines, p_watched, p_parent,
                      p_fence, p_steps, null, null, p_fingerprints, p_places, p_supervisor, p_lease, p_attempts, p_floors) s;
  return next;
end$$;
