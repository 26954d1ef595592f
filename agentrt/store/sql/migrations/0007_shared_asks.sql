-- Shared sends: asks, messages with a mailbox, and those that a budget pays for, come together too.

drop function agentrt.send_shared(bigint[], bigint[], text[], text[], text[], text[], int2[], float8[], timestamptz[], int[], text[],
                                  boolean[], float8[]);

-- Lock accounts and those above them, the youngest first: that is the order in which `charge` and `charge_jobs` come to them.
create function agentrt.lock_budgets(p_accounts bigint[]) returns void language plpgsql as $$
begin
  perform 1 from (
    with recursive chain(id) as (
      select unnest(p_accounts)
       union
      select b.parent from agentrt.budgets b join chain c on c.id = b.id where b.parent is not null)
    select c.id from chain c order by c.id desc) c
    cross join lateral (select 1 from agentrt.budgets b where b.id = c.id for no key update) l;
end$$;

-- Store messages of attempts, one each, without dedup keys: as `send` does it. In the order of their mailboxes, those of one side by side.
-- Returns a row for each, in order. existed: an earlier call has sent it, whose answer was lost; id null: the attempt has lost its
-- job, or (alone) the message must go alone: somebody holds its mailbox, or it is an ask that could wait for itself.
-- What somebody's transaction holds must not hold up the others for long: a row of a sender or a budget is waited for 100 ms, then this
-- fails with lock_not_available. When a budget is used up it fails with AR002. Either way it has changed nothing.
create function agentrt.send_shared(
  p_parents bigint[], p_fences bigint[], p_steps text[], p_fingerprints text[], p_places text[],
  p_agents text[], p_keys text[], p_priorities int2[], p_delays float8[], p_run_ats timestamptz[], p_max_attempts int[], p_payloads text[],
  p_watched boolean[], p_deadlines float8[], p_asks boolean[], p_timeouts float8[])
returns table(id bigint, existed boolean, alone boolean) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set enable_hashjoin = off set lock_timeout = '100ms' as $$
#variable_conflict use_column
declare
  v_shares boolean[];   -- by place, as all below: two steps of one job may be here; null: lost; false: it must go alone
  v_known bigint[];
  v_new bigint[];
  v_accounts bigint[];
  v_free boolean;
  v_now timestamptz;
begin
  v_shares := array(
    select x.shares from (
      select u.o, (select (u.k is null or u.asks is not true or k.key is null and not k.asked) from agentrt.jobs k   -- see require_no_cycle
                    where k.id = u.id and k.fence = u.fence and coalesce(k.status, '') = 'running' for share) as shares
        from (select * from unnest(p_parents, p_fences, p_keys, p_asks) with ordinality u(id, fence, k, asks, o) order by u.id) u
      offset 0) x
     order by x.o);
  if p_keys is not null then
    for n in 1 .. cardinality(p_keys) loop
      continue when p_keys[n] is null;
      if n = 1 or (p_agents[n], p_keys[n]) is distinct from (p_agents[n - 1], p_keys[n - 1]) then   -- all of a mailbox, or nothing
        v_free := pg_try_advisory_xact_lock(hashtextextended(p_keys[n], hashtextextended(p_agents[n], 0)));   -- see lock_key
      end if;
      v_shares[n] := v_shares[n] and v_free;
    end loop;
  end if;
  v_known := array(select (select s.child from agentrt.steps s where s.job_id = u.id and s.step = u.step)
                     from unnest(p_parents, p_steps) with ordinality u(id, step, o) order by u.o);
  v_new := array(select case when u.shares and u.known is null then nextval('agentrt.jobs_id_seq') end
                   from unnest(v_shares, v_known) with ordinality u(shares, known, o) order by u.o);
  if array_remove(v_new, null) <> '{}' then   -- an insert of nothing would ring, too
    v_accounts := array(select distinct k.account from unnest(v_new, p_parents) u(i, id)
                         cross join lateral (select j.account from agentrt.jobs j where j.id = u.id offset 0) k
                         where u.i is not null and k.account is not null);
    if v_accounts <> '{}' then
      perform agentrt.lock_budgets(v_accounts);
      perform agentrt.charge_jobs(c.account, c.hops, c.count) from (
        select k.account, max(k.hops) + 1 as hops, count(*)::int as count from unnest(v_new, p_parents) u(i, id)
         cross join lateral (select j.account, j.hops from agentrt.jobs j where j.id = u.id offset 0) k
         where u.i is not null and k.account is not null group by k.account) c;
    end if;
    v_now := agentrt.agentrt_now();
    insert into agentrt.jobs(id, agent, key, priority, created_at, run_after, max_attempts, payload, parent, root, hops, deadline,
                             account, watched, asked)
    select u.i, u.a, u.k, coalesce(u.p, 5::int2), v_now,
           least(coalesce(u.t, v_now + make_interval(secs => coalesce(u.s, 0))), k.deadline), u.m, u.b::json,
           k.id, coalesce(k.root, k.id), k.hops + 1, least(k.deadline, v_now + make_interval(secs => u.d)), k.account,
           coalesce(u.w, false), coalesce(u.asks, false)
      from unnest(v_new, p_parents, p_agents, p_keys, p_priorities, p_delays, p_run_ats, p_max_attempts, p_payloads, p_watched,
                  p_deadlines, p_asks) with ordinality u(i, id, a, k, p, s, t, m, b, w, d, asks, o)
     cross join lateral (select j.id, j.root, j.hops, j.deadline, j.account from agentrt.jobs j where j.id = u.id offset 0) k
     where u.i is not null order by u.o;
    insert into agentrt.steps(job_id, step, kind, fence, done, output, fingerprint, place, due, child)
    select u.id, u.step, case when u.asks then 'ask' else 'send' end, u.fence, u.asks is not true,
           case when u.asks is not true then to_json(u.i) end, u.fi, u.pl, v_now + make_interval(secs => u.t), u.i
      from unnest(v_new, p_parents, p_fences, p_steps, p_fingerprints, p_places, p_asks, p_timeouts)
           u(i, id, fence, step, fi, pl, asks, t)
     where u.i is not null;
  end if;
  return query select case when u.shares then coalesce(u.known, u.i) end, u.known is not null, not u.shares
                 from unnest(v_shares, v_known, v_new) with ordinality u(shares, known, i, o) order by u.o;
end$$;
