-- Shared sends: messages of many attempts in one statement.

-- Store messages of attempts, one each: as `send` does it with one that has no mailbox and no dedup key, that is not an ask, and that no
-- budget pays for. Returns a row for each, in order. existed: an earlier call has sent it, whose answer was lost; id null: the attempt
-- has lost its job.
create function agentrt.send_shared(
  p_parents bigint[], p_fences bigint[], p_steps text[], p_fingerprints text[], p_places text[],
  p_agents text[], p_priorities int2[], p_delays float8[], p_run_ats timestamptz[], p_max_attempts int[], p_payloads text[],
  p_watched boolean[], p_deadlines float8[])
returns table(id bigint, existed boolean) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set enable_hashjoin = off as $$
#variable_conflict use_column
declare
  v_owned boolean[];   -- by place, as all below: two steps of one job may be here; null: lost
  v_known bigint[];
  v_new bigint[];
  v_now timestamptz;
begin
  v_owned := array(
    select x.owned from (
      select u.o, (select k.account is null from agentrt.jobs k
                    where k.id = u.id and k.fence = u.fence and coalesce(k.status, '') = 'running' for share) as owned
        from (select * from unnest(p_parents, p_fences) with ordinality u(id, fence, o) order by u.id) u offset 0) x
     order by x.o);
  if false = any(v_owned) then
    raise exception 'agentrt: a budget pays for one of these messages, which must go alone';
  end if;
  v_known := array(select (select s.child from agentrt.steps s where s.job_id = u.id and s.step = u.step)
                     from unnest(p_parents, p_steps) with ordinality u(id, step, o) order by u.o);
  v_new := array(select case when u.owned and u.known is null then nextval('agentrt.jobs_id_seq') end
                   from unnest(v_owned, v_known) with ordinality u(owned, known, o) order by u.o);
  if array_remove(v_new, null) <> '{}' then   -- an insert of nothing would ring, too
    v_now := agentrt.agentrt_now();
    insert into agentrt.jobs(id, agent, priority, created_at, run_after, max_attempts, payload, parent, root, hops, deadline, watched)
    select u.i, u.a, coalesce(u.p, 5::int2), v_now,
           least(coalesce(u.t, v_now + make_interval(secs => coalesce(u.s, 0))), k.deadline), u.m, u.b::json,
           k.id, coalesce(k.root, k.id), k.hops + 1, least(k.deadline, v_now + make_interval(secs => u.d)), coalesce(u.w, false)
      from unnest(v_new, p_parents, p_agents, p_priorities, p_delays, p_run_ats, p_max_attempts, p_payloads, p_watched, p_deadlines)
           with ordinality u(i, id, a, p, s, t, m, b, w, d, o)
     cross join lateral (select j.id, j.root, j.hops, j.deadline from agentrt.jobs j where j.id = u.id offset 0) k
     where u.i is not null order by u.o;
    insert into agentrt.steps(job_id, step, kind, fence, done, output, fingerprint, place, child)
    select u.id, u.step, 'send', u.fence, true, to_json(u.i), u.fi, u.pl, u.i
      from unnest(v_new, p_parents, p_fences, p_steps, p_fingerprints, p_places) u(i, id, fence, step, fi, pl)
     where u.i is not null;
  end if;
  return query select case when u.owned then coalesce(u.known, u.i) end, u.known is not null
                 from unnest(v_owned, v_known, v_new) with ordinality u(owned, known, i, o) order by u.o;
end$$;

-- ------------------------------------------------------------------------------------------------ sweep

-- As before. The order is that of the index of what runs: planned while the tables were small, it could read all of another one, and
-- keep that plan.
create or replace function agentrt.sweep(p_limit int, p_dead uuid)
returns table(made_ready bigint[], ended bigint[], next_s float8) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_mergejoin = off set enable_hashjoin = off as $$
#variable_conflict use_column
declare
  v_now timestamptz := agentrt.agentrt_now();
  v_ids bigint[];
  v_text constant text := 'the process that ran it died, or its lease ran out';
begin
  v_ids := array(
    select j.id from (select * from agentrt.jobs k where k.status = 'running' order by k.agent, k.lease_expires) j
     where (j.supervisor = p_dead or coalesce(j.lease_expires, '-infinity') < v_now and not exists (
            select 1 from agentrt.leases l where l.job_id = j.id and l.fence = j.fence and l.expires >= v_now))
     limit p_limit);
  made_ready := '{}';
  ended := '{}';
  if v_ids <> '{}' then
    perform agentrt.lock_keys_of(v_ids);   -- before the rows, as every other verb does
    v_ids := array(
      select j.id from agentrt.jobs j
       where j.id = any(v_ids) and coalesce(j.status, '') = 'running'
         and (j.supervisor = p_dead or coalesce(j.lease_expires, '-infinity') < v_now and not exists (
              select 1 from agentrt.leases l where l.job_id = j.id and l.fence = j.fence and l.expires >= v_now))
         for no key update skip locked);
    insert into agentrt.attempts(job_id, fence, attempt, supervisor, reason, kind, text, traceback, claimed_at, ended_at)
    select j.id, j.fence, j.attempt, j.supervisor, 'crashed', 'Crashed', v_text, '', j.claimed_at, v_now
      from agentrt.jobs j where j.id = any(v_ids)
    on conflict do nothing;
    ended := array(select j.id from agentrt.jobs j where j.id = any(v_ids)
                      and (j.cancel_reason is not null or j.attempt >= coalesce(j.max_attempts, 1)));
    perform case when j.cancel_reason is not null then agentrt.bury(array[j.id], 'cancelled', 'cancelled', j.cancel_reason)
                 else agentrt.bury(array[j.id], 'failed', 'crashed', 'Crashed: ' || v_text) end
       from agentrt.jobs j where j.id = any(ended);
    if ended <> '{}' then
      perform pg_notify('agentrt' || '.ready', '');  -- an agent with a limit has room again
    end if;
    made_ready := array(select i from unnest(v_ids) i where i <> all(ended));
    update agentrt.jobs j
       set status = 'ready', ord = nextval('agentrt.ord_seq'), supervisor = null, lease_expires = null,
           last_error = 'Crashed: ' || v_text,
           alone = j.attempt + 1 >= j.max_attempts or exists (
             select 1 from agentrt.attempts a where a.job_id = j.id and a.reason = 'crashed' and a.fence < j.fence)
     where j.id = any(made_ready);
    delete from agentrt.leases l where l.job_id = any(made_ready);
  end if;
  next_s := (select extract(epoch from min(greatest(j.lease_expires, l.expires)) - agentrt.agentrt_now())
               from (select * from agentrt.jobs k where k.status = 'running' order by k.agent, k.lease_expires) j
               left join agentrt.leases l on l.job_id = j.id and l.fence = j.fence);
  return next;
end$$;
