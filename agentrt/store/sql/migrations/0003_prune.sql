-- Retention: what ended long enough ago leaves, a day of it at once where that can be.
--
-- Looks at other tables are scalar queries with a limit: `exists … or exists …` may be answered by a hash of the whole table.

-- Who still needs the budget of a job that has ended: the live jobs that pay from it, and the budgets below it.
create index jobs_account on agentrt.jobs(account) where account is not null;
create index budgets_parent on agentrt.budgets(parent) where parent is not null;

-- Of these ended jobs, those that must stay: a live job waits for their end, or pays from their budget.
create function agentrt.prune_held(p_ids bigint[]) returns bigint[] language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  return array(
    select u.i from unnest(p_ids) u(i)
     where (select 1 from agentrt.steps s join agentrt.jobs j on j.id = s.job_id where s.child = u.i and not s.done limit 1) is not null
        or (select 1 from agentrt.jobs j where j.account = u.i limit 1) is not null
        or (select 1 from agentrt.budgets b where b.parent = u.i limit 1) is not null);
end$$;

-- Of these ended jobs, those that have rows in other tables.
create function agentrt.prune_laden(p_ids bigint[]) returns bigint[] language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  return array(
    select u.i from unnest(p_ids) u(i)
     where (select 1 from agentrt.steps s where s.job_id = u.i limit 1) is not null
        or (select 1 from agentrt.attempts a where a.job_id = u.i limit 1) is not null
        or (select 1 from agentrt.dedups d where d.job_id = u.i limit 1) is not null
        or (select 1 from agentrt.decisions d where d.job_id = u.i limit 1) is not null
        or (select 1 from agentrt.budgets b where b.id = u.i limit 1) is not null);
end$$;

-- Drop a day. It waits for its turn only shortly: whoever comes after it waits as long, and `finish` is among them.
-- Returns 'dropped'; 'locked': somebody reads the history, try again later; 'denied': this role does not own the table.
create function agentrt.prune_day(p_partition text) returns text language plpgsql set lock_timeout = '200ms' as $$
begin
  execute format('drop table if exists agentrt.%I', p_partition);
  return 'dropped';
exception
  when lock_not_available then
    return 'locked';
  when insufficient_privilege then
    return 'denied';
end$$;

-- When the day of a partition ends; null for the default partition.
create function agentrt.prune_ends(p_partition text) returns timestamptz language sql stable as $$
  select (to_date(right(p_partition, 8), 'YYYYMMDD') + 1)::timestamp at time zone 'UTC' where p_partition ~ '^history_\d{8}$'
$$;

-- The partition to look at after p_after (null: the first), and whether all of it is due: the days that lie before p_cut, with
-- p_partly also one that it cuts, and the default partition at the end.
create function agentrt.prune_next(p_after text, p_cut timestamptz, p_partly boolean, out name text, out mode text)
language sql stable as $$
  select c.relname, case when agentrt.prune_ends(c.relname) <= p_cut then 'drop' else 'rows' end
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
   where i.inhparent = 'agentrt.history'::regclass and (p_after is null or c.relname collate "C" > p_after collate "C")
     and case when p_partly then agentrt.prune_ends(c.relname) - interval '1 day' < p_cut
              else agentrt.prune_ends(c.relname) <= p_cut end is not false
   order by c.relname collate "C" limit 1
$$;

-- Remove ended jobs of a partition with all that is kept of them: the first of p_ids, as many as have about p_rows steps together.
-- Returns those whose turn it was, and those that are gone: one that is locked (it is being retried, or asked for its result) is left
-- for the next time.
create function agentrt.prune_jobs(p_ids bigint[], p_rows int, p_partition text, out turn bigint[], out gone bigint[])
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off as $$
begin
  turn := array(
    select w.i from (select u.i, sum(n.steps + 1) over (order by u.i) - n.steps - 1 as before
                       from unnest(p_ids) u(i)
                      cross join lateral (select count(*) as steps from agentrt.steps s where s.job_id = u.i) n) w
     where w.before < p_rows order by w.i);
  execute format('select array(select h.id from agentrt.%I h where h.id = any($1) order by h.id for update skip locked)', p_partition)
     into gone using turn;
  delete from agentrt.steps where job_id = any(gone);
  delete from agentrt.attempts where job_id = any(gone);
  delete from agentrt.dedups where job_id = any(gone);
  delete from agentrt.decisions where job_id = any(gone);
  delete from agentrt.budgets where id = any(gone);
  execute format('delete from agentrt.%I where id = any($1)', p_partition) using gone;
end$$;

-- One batch: look at up to p_limit ended jobs of one partition, in the order of their ids, and remove what is due of them.
-- In a day that is due as a whole only jobs with rows in other tables are removed one by one, together with those rows; the others
-- leave with the day. Where it cannot be dropped (a job in it must stay, this role does not own it, only a part of it is due) all
-- are removed one by one. The caller hands back where the last batch ended: partition, id, and mode,
--   drop  nothing stands against dropping it so far      held  a job that must stay was met      rows  it is not dropped
-- and begins with nulls, at the oldest day. Returns how many were removed one by one, how many were left to leave with their day, how
-- many days were dropped, and where to go on (at_partition null: that was all). No row: another process prunes at this moment.
-- A batch that drops a day does nothing else, so that it holds no other lock while it waits for that one.
create function agentrt.prune(p_keep float8, p_limit int, p_partly boolean, p_partition text, p_after bigint, p_mode text)
returns table(removed int, spared int, days int, at_partition text, at_id bigint, at_mode text) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off as $$
declare
  v_cut timestamptz := agentrt.agentrt_now() - make_interval(secs => p_keep);
  v_seen bigint[];
  v_due bigint[];
  v_go bigint[];
  v_done record;
  v_empty boolean;
  v_end text := '';
begin
  if not pg_try_advisory_xact_lock(hashtextextended('agentrt' || '.prune', 0)) then
    return;
  end if;
  removed := 0; spared := 0; days := 0; at_partition := p_partition; at_id := p_after; at_mode := p_mode;
  if p_partition is null or to_regclass(format('agentrt.%I', p_partition)) is null then  -- the first one, or it has been dropped
    select n.name, 0, n.mode into at_partition, at_id, at_mode from agentrt.prune_next(p_partition, v_cut, p_partly) n;
    if at_partition is null then
      return next;
      return;
    end if;
  end if;
  execute format('select array(select h.id from agentrt.%I h where h.id > $1 order by h.id limit $2)', at_partition)
     into v_seen using at_id, p_limit;
  if v_seen <> '{}' then
    execute format('select array(select h.id from agentrt.%I h where h.id = any($1) and h.finished_at < $2 order by h.id)', at_partition)
       into v_due using v_seen, v_cut;
    v_go := agentrt.prune_held(v_due);
    if v_go <> '{}' and at_mode = 'drop' then
      at_mode := 'held';
    end if;
    v_due := array(select i from unnest(v_due) i where i <> all(v_go) order by i);
    v_go := case when at_mode = 'rows' then v_due else agentrt.prune_laden(v_due) end;
    select * into v_done from agentrt.prune_jobs(v_go, p_limit, at_partition);
    removed := cardinality(v_done.gone);
    if v_done.gone <> v_done.turn and at_mode = 'drop' then
      at_mode := 'held';
    end if;
    at_id := case when cardinality(v_done.turn) < cardinality(v_go) then v_done.turn[cardinality(v_done.turn)]
                  else v_seen[cardinality(v_seen)] end;
    spared := (select count(*) from unnest(v_due) i where i <= at_id and i <> all(v_done.turn));
    return next;
    return;
  end if;
  if at_mode = 'held' then   -- what was left to leave with its day goes one by one
    at_id := 0; at_mode := 'rows';
    return next;
    return;
  end if;
  if agentrt.prune_ends(at_partition) <= v_cut then
    execute format('select not exists (select 1 from agentrt.%I h)', at_partition) into v_empty;
    if at_mode = 'drop' or v_empty then
      v_end := agentrt.prune_day(at_partition);
    end if;
    if v_end = 'denied' and not v_empty then
      at_id := 0; at_mode := 'rows';
      return next;
      return;
    end if;
  end if;
  days := (v_end = 'dropped')::int;
  select n.name, 0, n.mode into at_partition, at_id, at_mode from agentrt.prune_next(at_partition, v_cut, p_partly) n;
  return next;
end$$;
