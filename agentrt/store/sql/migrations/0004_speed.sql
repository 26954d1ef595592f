-- Speed: who wants to be rung, claims that skip what is gone, and the end of jobs together with the claim of the next.

-- ------------------------------------------------------------------------------------------------ the bell

-- quiet: it looks by itself (all its slots are taken, or messages come so fast that the next look is due anyway, or enough others
-- listen), so nobody need ring. NOTIFY takes a lock of the whole cluster at commit and keeps it over the flush: where eight
-- connections send, ringing each time costs two thirds of their speed.
-- standby: quiet because enough others listen; it does not listen at all, for before PostgreSQL 19 each listening session of the
-- database is woken by each commit that rings, and 300 of them let no more than 60 to 90 such commits through a second.
-- alive_at: the last beat by the server's clock, which no test moves.
alter table agentrt.supervisors
  add column quiet boolean not null default false,
  add column standby boolean not null default false,
  add column alive_at timestamptz not null default clock_timestamp();

-- Ring the supervisors, unless all of them look by themselves. In read committed the look has a snapshot of its own, taken when this
-- transaction has its number: one that becomes loud after it waits until all that had a number by then have ended, and looks (see
-- engine.doorbell). An older snapshot may be too old for that, so other isolation levels always ring.
create function agentrt.ring() returns void language plpgsql as $$
begin
  if current_setting('transaction_isolation') <> 'read committed'
     or exists (select 1 from agentrt.supervisors s
                 where not s.quiet and s.alive_at > clock_timestamp() - interval '35 s') then
    perform pg_notify('agentrt' || '.ready', '');
  end if;
end$$;

create or replace function agentrt.jobs_wake() returns trigger language plpgsql as $$
begin
  if tg_argv[0] = 'ready' then
    perform agentrt.ring();
  else
    perform pg_notify(tg_table_schema || '.' || tg_argv[0], '');
  end if;
  return null;
end$$;

-- Held: whoever made these rows looks at them in the same transaction (see turn, send).
drop trigger jobs_wake on agentrt.jobs;
create trigger jobs_wake after insert on agentrt.jobs
  for each statement when (coalesce(current_setting('agentrt_bell.held', true), '') <> 'on')
  execute function agentrt.jobs_wake('ready');
drop trigger jobs_ready on agentrt.jobs;
create trigger jobs_ready after update on agentrt.jobs
  for each row when (new.status = 'ready'
                     and not (old.status in ('blocked', 'scheduled') and coalesce(current_setting('agentrt_bell.held', true), '') = 'on'))
  execute function agentrt.jobs_wake('ready');

-- As before; rings once for all the delayed jobs that it moves.
create or replace function agentrt.due(p_limit int) returns table(moved int, next_s float8) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare v_now timestamptz := agentrt.agentrt_now();
begin
  perform set_config('agentrt_bell.held', 'on', true);   -- once for all of them, below
  update agentrt.jobs set status = 'ready', ord = nextval('agentrt.ord_seq')
   where id = any(array(
     select id from agentrt.jobs where status in ('scheduled', 'parked') and run_after <= v_now
      order by run_after, ord limit p_limit for no key update skip locked));
  get diagnostics moved = row_count;
  perform set_config('agentrt_bell.held', '', true);
  if moved > 0 then
    perform agentrt.ring();
  end if;
  next_s := (select extract(epoch from s.run_after - agentrt.agentrt_now())
               from (select run_after from agentrt.jobs where status in ('scheduled', 'parked') and run_after < 'infinity'
                      order by run_after limit 1) s);
  return next;
end$$;

-- As before, and unrung: until this beat nobody rang this supervisor, for it was unknown or had been silent for too long.
-- ahead: how many live ones that know all its agents listen and began before it.
drop function agentrt.beat(uuid, text, int, text[], int, json, text, text[], int);
create function agentrt.beat(p_supervisor uuid, p_host text, p_pid int, p_agents text[], p_slots int, p_limits json,
                             p_state text, p_told text[], p_names_max int)
returns table(ready boolean, unknown text[], unknown_jobs int[], unrung boolean, ahead int) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  unrung := coalesce((select s.alive_at < clock_timestamp() - interval '30 s' from agentrt.supervisors s where s.id = p_supervisor), true);
  insert into agentrt.supervisors as s (id, host, pid, agents, slots, limits, state)
  values (p_supervisor, p_host, p_pid, p_agents, p_slots, p_limits, p_state)
  on conflict (id) do update set beat_at = agentrt.agentrt_now(), alive_at = clock_timestamp(), state = excluded.state;
  delete from agentrt.supervisors where beat_at < agentrt.agentrt_now() - interval '1 day';
  ahead := (select count(*) from agentrt.supervisors o join agentrt.supervisors m on m.id = p_supervisor
             where not o.standby and o.state = 'running' and o.alive_at > clock_timestamp() - interval '35 s' and o.agents @> m.agents
               and (o.started_at, o.id) < (m.started_at, m.id));
  perform pg_notify('agentrt' || '.bell', p_supervisor::text);
  ready := exists (   -- with `limit`, else each look below could become a hash of all that is ready
    select 1 from unnest(p_agents) a(agent)
     where (select 1 from agentrt.jobs q where q.agent = a.agent and q.status = 'ready' and not q.alone limit 1) is not null
        or (select 1 from agentrt.jobs q where q.agent = a.agent and q.status = 'ready' and q.alone limit 1) is not null);
  with recursive names(agent, looks) as (
    select '', cardinality(p_agents) + cardinality(p_told) + p_names_max
    union all
    select (select q.agent from agentrt.jobs q where q.agent > n.agent and q.status = 'ready' and not q.alone
             order by q.agent limit 1), n.looks - 1
      from names n where n.agent is not null and n.looks > 0 and p_names_max > 0)
  select coalesce(array_agg(s.agent), '{}'), coalesce(array_agg(s.jobs), '{}') into unknown, unknown_jobs
    from (select n.agent, (select count(*) from (select 1 from agentrt.jobs q where q.agent = n.agent and q.status = 'ready'
                                                    and not q.alone limit 1000) c)::int as jobs
            from names n where n.agent <> '' and n.agent <> all(p_agents) and n.agent <> all(p_told)
           limit p_names_max) s;
  return next;
end$$;

-- As before; an asker that is ready is rung for, since a claim skips what is locked here and must hear when the lock is gone.
create or replace function agentrt.answer(p_id bigint, p_step text, p_output text, p_failure text) returns boolean language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
declare v_status text;
begin
  select j.status into v_status from agentrt.jobs j where j.id = p_id for no key update;
  update agentrt.steps s
     set done = true, output = p_output::json, failure = p_failure::json, recorded_at = agentrt.agentrt_now()
   where s.job_id = p_id and s.step = p_step and not s.done;
  if not found then
    return false;
  end if;
  if v_status = 'parked' then
    update agentrt.jobs j
       set status = 'ready', ord = nextval('agentrt.ord_seq'), run_after = least(j.run_after, agentrt.agentrt_now())
     where j.id = p_id;
  elsif v_status = 'running' then
    perform pg_notify('agentrt' || '.answer', p_id::text);
  elsif v_status = 'ready' then   -- a claim may have skipped it because of the lock
    perform agentrt.ring();
  end if;
  return true;
end$$;

create or replace function agentrt.lock_askers(p_ids bigint[]) returns void language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
begin
  if exists (select 1 from agentrt.jobs j where j.id = any(p_ids) and j.asked) then
    if 'ready' = any(array(   -- a claim skips it while it is locked here
         select j.status from agentrt.jobs j
          where j.id = any(p_ids || array(select s.job_id from agentrt.steps s where s.child = any(p_ids) and not s.done))
          order by j.id for update)) then
      perform agentrt.ring();
    end if;
  end if;
end$$;

-- ------------------------------------------------------------------------------------------------ claim

-- As before, and p_floors: null, or for each agent ten numbers, one a priority. Jobs whose ord lies below are not looked at: they are
-- known to be gone, and while an old snapshot is open their dead entries would be walked by every claim.
drop function agentrt.claim(uuid, text[], int[], int[], int[], float8[], int, boolean);
create function agentrt.claim(
  p_supervisor uuid, p_agents text[], p_limits int[], p_global int[], p_max_attempts int[], p_leases float8[],
  p_floors bigint[], p_total int, p_alone boolean)
returns table(id bigint, fence bigint, agent text, key text, attempt int, max_attempts int, payload text, priority smallint,
              ord bigint, root bigint, hops int, deadline_s float8, account bigint, alone boolean, lease_s float8,
              waited_s float8, state text, steps text)
language plpgsql rows 20
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  v_limits int[] := p_limits;
  v_limited record;
  v_alone bigint[] := '{}';
  v_ids bigint[];
begin
  for v_limited in select u.a, u.g, u.o from unnest(p_agents, p_global) with ordinality u(a, g, o)
                    where u.g is not null order by u.a collate "C" loop
    perform pg_advisory_xact_lock(hashtextextended(v_limited.a, 1));
    v_limits[v_limited.o] := least(v_limits[v_limited.o], greatest(0, v_limited.g - (
      select count(*) from agentrt.jobs r where r.agent = v_limited.a and r.status = 'running')));
  end loop;
  if p_alone then
    v_alone := array(
      select l.id from unnest(p_agents, v_limits) a(agent, n)
       cross join lateral (
             select q.id from agentrt.jobs q where q.agent = a.agent and q.status = 'ready' and q.alone
              order by q.priority, q.ord limit least(a.n, 1)
              for no key update skip locked) l
       limit 1);
    if v_alone <> '{}' then   -- it takes one of the agent's room
      v_limits := array(select u.n - (u.agent = s.agent)::int from unnest(p_agents, v_limits) with ordinality u(agent, n, o),
                               (select q.agent from agentrt.jobs q where q.id = v_alone[1]) s order by u.o);
    end if;
  end if;
  if p_floors is null then
    v_ids := array(
      select l.id from unnest(p_agents, v_limits) a(agent, n)
       cross join lateral (
             select q.id from agentrt.jobs q where q.agent = a.agent and q.status = 'ready' and not q.alone
              order by q.priority, q.ord limit a.n
              for no key update skip locked) l
       limit p_total - cardinality(v_alone));
  else
    v_ids := array(
      select l.id from unnest(p_agents, v_limits) with ordinality a(agent, n, o)
       cross join lateral (
             select q.id from generate_series(0, 9) p   -- best priority first, and only as far as is needed
              cross join lateral (
                    select r.id from agentrt.jobs r
                     where r.agent = a.agent and r.priority = p::int2 and r.status = 'ready' and not r.alone
                       and r.ord >= p_floors[(a.o::int - 1) * 10 + p + 1]
                     order by r.ord limit a.n
                     for no key update skip locked) q
              limit a.n) l
       limit p_total - cardinality(v_alone));
  end if;
  v_now := agentrt.agentrt_now();
  return query
  update agentrt.jobs j
     set status = 'running', supervisor = p_supervisor, attempt = j.attempt + 1, fence = j.fence + 1, claimed_at = v_now,
         max_attempts = coalesce(j.max_attempts, p_max_attempts[array_position(p_agents, j.agent)]),
         lease_expires = v_now + make_interval(secs => p_leases[array_position(p_agents, j.agent)])
   where j.id = any(v_alone || v_ids)
  returning j.id, j.fence, j.agent, j.key, j.attempt, j.max_attempts, j.payload::text, j.priority, j.ord,
            coalesce(j.root, j.id), j.hops, extract(epoch from j.deadline - v_now)::float8, j.account, j.alone,
            p_leases[array_position(p_agents, j.agent)], extract(epoch from v_now - j.run_after)::float8,
            case when j.key is not null then (select t.value::text from agentrt.states t
                                               where t.agent = j.agent and t.key = j.key) end,
            case when j.fence > 1 then agentrt.steps_json(j.id, v_now) end;
end$$;

-- Where the ready jobs of these agents begin: for each agent and priority the least ord, ten an agent; null: none is ready.
-- It walks what a claim leaves out, so it is asked now and then, beside the claims.
create function agentrt.floors(p_agents text[]) returns bigint[] language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  return array(select (select q.ord from agentrt.jobs q
                        where q.agent = a.agent and q.priority = p::int2 and q.status = 'ready' and not q.alone
                        order by q.ord limit 1)
                 from unnest(p_agents) with ordinality a(agent, o) cross join generate_series(0, 9) p order by a.o, p);
end$$;

-- ------------------------------------------------------------------------------------------------ the end of an attempt, leases

-- As before, without the join that compared each job with each: from a batch of arrays the jobs are reached one by one, by primary key.
create or replace function agentrt.finish(
  p_ids bigint[], p_fences bigint[], p_states text[], p_results text[],
  p_reasons text[], p_kinds text[], p_texts text[], p_tracebacks text[], p_counts boolean[], p_key_states text[],
  p_reopen_ids bigint[], p_reopen_steps text[], p_keyed boolean, p_limited boolean)
returns setof bigint language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  v_now timestamptz;
  v_ids bigint[];
begin
  if p_keyed then
    perform agentrt.lock_keys_of(p_ids);
  end if;
  if p_limited then
    perform pg_notify('agentrt' || '.ready', '');
  end if;
  perform agentrt.lock_askers(p_ids);
  v_now := agentrt.agentrt_now();
  with h as (
    insert into agentrt.history(id, agent, key, kseq, state, priority, attempt, max_attempts, fence, supervisor, run_after,
                                claimed_at, created_at, finished_at, parent, root, hops, account, reason, last_error, payload,
                                result)
    select j.id, j.agent, j.key, j.kseq, coalesce(u.state, 'succeeded'), j.priority,
           j.attempt - case when coalesce(u.counts, true) then 0 else 1 end, j.max_attempts,
           j.fence, j.supervisor, j.run_after, j.claimed_at, j.created_at, v_now, j.parent, j.root, j.hops, j.account, u.reason,
           coalesce(nullif(concat_ws(': ', u.kind, nullif(u.text, '')), ''), j.last_error), j.payload, u.result::json
      from unnest(p_ids, p_fences, p_states, p_results, p_reasons, p_kinds, p_texts, p_counts)
           u(id, fence, state, result, reason, kind, text, counts)
     cross join lateral (
           select * from agentrt.jobs k where k.id = u.id and k.fence = u.fence and coalesce(k.status, '') = 'running' for update) j
    returning id)
  select coalesce(array_agg(h.id), '{}') into v_ids from h;
  if array_remove(p_reasons, null) <> '{}' then
    insert into agentrt.attempts(job_id, fence, attempt, supervisor, reason, kind, text, traceback, claimed_at, ended_at)
    select j.id, j.fence, j.attempt, j.supervisor, u.reason, u.kind, u.text, u.traceback, j.claimed_at, v_now
      from unnest(p_ids, p_fences, p_reasons, p_kinds, p_texts, p_tracebacks) u(id, fence, reason, kind, text, traceback)
     cross join lateral (select * from agentrt.jobs k where k.id = u.id and k.fence = u.fence offset 0) j
     where u.reason is not null and u.id = any(v_ids);
  end if;
  if array_remove(p_key_states, null) <> '{}' then
    insert into agentrt.states as t (agent, key, value)
    select j.agent, j.key, u.key_state::json
      from unnest(p_ids, p_fences, p_key_states) u(id, fence, key_state)
     cross join lateral (select k.agent, k.key from agentrt.jobs k where k.id = u.id and k.fence = u.fence offset 0) j
     where u.key_state is not null and u.id = any(v_ids)
    on conflict (agent, key) do update set value = excluded.value, changed_at = agentrt.agentrt_now();
  end if;
  delete from agentrt.leases l where l.job_id = any(v_ids);
  delete from agentrt.jobs j where j.id = any(v_ids);
  return query select unnest(v_ids);
  if p_reopen_ids <> '{}' then
    perform agentrt.reopen(p_reopen_ids, p_reopen_steps, true);
  end if;
end$$;
create or replace function agentrt.renew(p_ids bigint[], p_fences bigint[], p_leases float8[]) returns setof bigint language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
begin
  return query
  insert into agentrt.leases as l (job_id, fence, expires)
  select j.id, j.fence, agentrt.agentrt_now() + make_interval(secs => u.lease)
    from unnest(p_ids, p_fences, p_leases) u(id, fence, lease)
   cross join lateral (
         select * from agentrt.jobs k where k.id = u.id and k.fence = u.fence and coalesce(k.status, '') = 'running' offset 0) j
   order by j.id
  on conflict (job_id) do update set fence = excluded.fence, expires = excluded.expires where l.fence <= excluded.fence
  returning l.job_id;
end$$;

-- ------------------------------------------------------------------------------------------------ turn

-- Move finished jobs to history, and claim in the same round trip into the slots that they leave. The next of a mailbox, made ready by
-- the end of the one before, is among what can be claimed. As `finish`, then `claim`; p_keyed: the agents of those with a key.
-- Slots are promised to it and leases begin inside, so it does not wait for a mailbox that somebody's transaction holds: it fails with
-- lock_not_available, and has changed nothing. Returns one row with the ids that were accepted, then the claimed jobs.
create function agentrt.turn(
  p_ids bigint[], p_fences bigint[], p_states text[], p_results text[],
  p_reasons text[], p_kinds text[], p_texts text[], p_tracebacks text[], p_counts boolean[], p_key_states text[],
  p_reopen_ids bigint[], p_reopen_steps text[], p_keyed text[], p_limited boolean,
  p_supervisor uuid, p_agents text[], p_limits int[], p_global int[], p_max_attempts int[], p_leases float8[],
  p_floors bigint[], p_total int, p_alone boolean)
returns table(accepted bigint[], id bigint, fence bigint, agent text, key text, attempt int, max_attempts int, payload text,
              priority smallint, ord bigint, root bigint, hops int, deadline_s float8, account bigint, alone boolean, lease_s float8,
              waited_s float8, state text, steps text)
language plpgsql rows 20
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off
set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare v_before bigint := (select s.last_value from agentrt.ord_seq s);
begin
  if p_keyed <> '{}' then   -- what is promoted and not claimed here is rung for below
    perform set_config('agentrt_bell.held', 'on', true);
  end if;
  accepted := array(
    select agentrt.finish(p_ids, p_fences, p_states, p_results, p_reasons, p_kinds, p_texts, p_tracebacks, p_counts, p_key_states,
                          p_reopen_ids, p_reopen_steps, p_keyed <> '{}', p_limited));
  return next;
  return query
  select null::bigint[], c.* from agentrt.claim(p_supervisor, p_agents, p_limits, p_global, p_max_attempts, p_leases, p_floors, p_total,
                                                p_alone) c;
  if p_keyed <> '{}' then
    perform set_config('agentrt_bell.held', '', true);
    if exists (select 1 from unnest(p_keyed) a(agent) cross join generate_series(0, 9) p
                where (select 1 from agentrt.jobs q
                        where q.agent = a.agent and q.priority = p::int2 and q.status = 'ready' and not q.alone and q.ord > v_before
                        limit 1) is not null) then
      perform agentrt.ring();
    end if;
  end if;
end$$;

-- ------------------------------------------------------------------------------------------------ steps

-- As before; the steps of many jobs come together now, so these are locked in one order.
create or replace function agentrt.record(
  p_ids bigint[], p_fences bigint[], p_steps text[], p_kinds text[], p_dones boolean[], p_outputs text[], p_failures text[],
  p_fingerprints text[], p_places text[], p_waits float8[], p_tries int[], p_usd text[], p_tokens bigint[],
  p_covered_usd text[], p_covered_tokens bigint[])
returns table(n int, owned boolean, done boolean, output text, failure text, due_s float8, child bigint, exceeded text)
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set enable_hashjoin = off as $$
#variable_conflict use_column
declare
  v_owned boolean[];   -- by place: two attempts of one job may be here
  v_now timestamptz;
  v_written text[];
  v_exceeded text;
begin
  v_owned := array(
    select x.owned from (
      select u.o, (select true from agentrt.jobs k
                    where k.id = u.id and k.fence = u.fence and coalesce(k.status, '') = 'running' for share) is not null as owned
        from (select * from unnest(p_ids, p_fences) with ordinality u(id, fence, o) order by u.id) u offset 0) x
     order by x.o);
  v_now := agentrt.agentrt_now();
  with w as (insert into agentrt.steps as s (job_id, step, kind, fence, done, output, failure, fingerprint, place, due, tries, usd, tokens)
  select u.id, u.step, coalesce(u.kind, 'step'), u.fence, coalesce(u.done, true), u.output::json, u.failure::json, u.fingerprint, u.place,
         v_now + make_interval(secs => u.wait), coalesce(u.tries, 0), u.usd::numeric, u.tokens
    from unnest(p_ids, p_fences, p_steps, p_kinds, p_dones, p_outputs, p_failures, p_fingerprints, p_places, p_waits, p_tries, p_usd,
                p_tokens, v_owned)
         u(id, fence, step, kind, done, output, failure, fingerprint, place, wait, tries, usd, tokens, owned)
   where u.owned
  on conflict (job_id, step) do update
     set done = excluded.done, output = excluded.output, failure = excluded.failure, fence = excluded.fence,
         due = case when s.kind = 'sleep' then s.due else excluded.due end,  -- a sleep that is told again does not begin anew
         tries = excluded.tries, usd = coalesce(s.usd, 0) + excluded.usd, tokens = coalesce(s.tokens, 0) + excluded.tokens,
         recorded_at = v_now
   where not s.done   -- nor is a wait written again, whose answer was lost
     and not (not excluded.done and s.fence = excluded.fence and s.tries = excluded.tries and s.due > v_now)
  returning s.job_id, s.step)
  select coalesce(array_agg(w.job_id || '/' || w.step) filter (where p_usd is not null), '{}') into v_written from w;
  if p_usd is not null then   -- what a reservation covers is booked already
    v_exceeded := (select agentrt.charge(j.account, (u.usd::numeric - u.covered_usd::numeric) * w.times,
                                         (u.tokens - u.covered_tokens) * w.times)
                     from unnest(p_ids, p_steps, p_usd, p_tokens, p_covered_usd, p_covered_tokens, v_owned)
                          u(id, step, usd, tokens, covered_usd, covered_tokens, owned)
                    cross join lateral (select (u.id || '/' || u.step = any(v_written))::int as times) w
                     join agentrt.jobs j on j.id = u.id where u.owned and j.account is not null limit 1);
  end if;
  return query
  select u.o::int, u.owned, s.done, s.output::text, s.failure::text, extract(epoch from s.due - v_now)::float8, s.child,
         v_exceeded
    from unnest(p_ids, p_steps, v_owned) with ordinality u(id, step, owned, o)
    left join lateral (select * from agentrt.steps k where k.job_id = u.id and k.step = u.step limit 1) s on true
   order by u.o;
end$$;

-- ------------------------------------------------------------------------------------------------ send

-- As before; an array that is null has the usual value in each place. And the hand-over: p_supervisor, which runs the agent of the one
-- message and has a slot free for it, gets it at once, unless an older job of that agent and of no lower priority is ready (p_floors:
-- see claim) or its mailbox has another. It is then `taken`: running under fence 1, as if claimed.
drop function agentrt.send(text[], text[], int2[], float8[], timestamptz[], int[], text[], text[], float8[], boolean[], bigint, bigint,
                           text[], boolean[], float8[], text[], text[]);
create function agentrt.send(
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
    v_known := array(select (select s.child from agentrt.steps s where s.job_id = p_parent and s.step = u.step)
                       from unnest(p_steps) with ordinality u(step, o) order by u.o);
  end if;
  if p_dedups is not null then
    insert into agentrt.dedups(agent, dedup, job_id)
    select u.a, u.d, min(u.i) from unnest(p_agents, p_dedups, v_new, v_known) u(a, d, i, kn) where u.d is not null and u.kn is null
     group by u.a, u.d order by u.a collate "C", u.d collate "C"
    on conflict do nothing;
  end if;
  if v_asks and (v_parent.key is not null or v_parent.asked) then
    perform agentrt.lock_cycles();
  end if;
  if p_keys is not null then
    perform agentrt.lock_key(k.a, k.k) from (
      select distinct u.a collate "C" as a, u.k collate "C" as k from unnest(p_agents, p_keys) u(a, k)
       where u.k is not null order by 1, 2) k;
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
      perform set_config('agentrt_bell.held', 'on', true);
    end if;
  end if;
  insert into agentrt.jobs(id, agent, key, priority, run_after, max_attempts, payload, parent, root, hops, deadline, account,
                           watched, asked, status, supervisor, fence, attempt, claimed_at, lease_expires, ord)
  select u.i, u.a, u.k, coalesce(u.p, 5::int2), least(coalesce(u.t, v_now + make_interval(secs => coalesce(u.s, 0))), v_parent.deadline), case when v_take then coalesce(u.m, p_attempts) else u.m end,
         u.b::json,
         p_parent, coalesce(v_parent.root, v_parent.id), coalesce(v_parent.hops + 1, 0), least(v_parent.deadline, v_now + make_interval(secs => u.dl)),
         v_parent.account, coalesce(u.w, false), coalesce(u.asks, false),
         case when v_take then 'running' else 'ready' end, case when v_take then p_supervisor end, v_take::int, v_take::int,
         case when v_take then v_now end, case when v_take then v_now + make_interval(secs => p_lease) end,
         case when v_take then 0 else nextval('agentrt.ord_seq') end   -- 0: it was never ready, so no claim can have taken it
    from unnest(v_ids, v_new, p_agents, p_keys, p_priorities, p_delays, p_run_ats, p_max_attempts, p_payloads, p_deadlines,
                p_watched, p_asks) with ordinality u(i, n, a, k, p, s, t, m, b, dl, w, asks, o)
   where u.i = u.n order by u.o;
  if v_take then
    perform set_config('agentrt_bell.held', '', true);
  end if;
  if p_parent is not null then
    insert into agentrt.steps(job_id, step, kind, fence, done, output, fingerprint, place, due, child)
    select p_parent, u.step, case when u.asks then 'ask' else 'send' end, p_fence, u.asks is not true,
           case when u.asks is not true then to_json(u.i) end, u.fi, u.pl, v_now + make_interval(secs => u.t), u.i
      from unnest(p_steps, v_ids, v_known, p_asks, p_timeouts, p_fingerprints, p_places) u(step, i, kn, asks, t, fi, pl)
     where u.kn is null;
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
                          where (v_take or v_known[1] is not null) and j.id = v_ids[1] and j.fence = 1 and j.ord = 0 and j.supervisor = p_supervisor
                            and coalesce(j.status, '') = 'running' offset 0) t on true;
    return;
  end if;
  return query select u.o::int, u.i, u.i <> u.n, false, null::text, null::float8, null::float8
                 from unnest(v_ids, v_new) with ordinality u(i, n, o) order by u.o;
end$$;

-- As before; a message that is handed over keeps its lease when its mailbox is free.
create or replace function agentrt.jobs_gate() returns trigger language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'agentrt: a job with a key needs the isolation level read committed, this transaction is %',
      current_setting('transaction_isolation')
      using hint = 'Its snapshot may be too old to see the jobs before it. Send it in a transaction of its own.';
  end if;
  perform agentrt.lock_key(new.agent, new.key);
  new.kseq := nextval('agentrt.ord_seq');
  if exists (select 1 from (select 1 from agentrt.jobs where agent = new.agent and key = new.key
                             order by kseq desc limit 1) s) then
    new.status := 'blocked';
    if new.supervisor is not null then   -- handed over, but not yet its turn
      new.supervisor := null; new.fence := 0; new.attempt := 0; new.claimed_at := null; new.lease_expires := null;
      new.ord := nextval('agentrt.ord_seq');
    end if;
  elsif new.status = 'running' and new.supervisor is not null then
    null;
  elsif new.run_after > agentrt.agentrt_now() then
    new.status := 'scheduled';
    perform pg_notify(tg_table_schema || '.due', '');
  else
    new.status := 'ready';
  end if;
  return new;
end$$;
