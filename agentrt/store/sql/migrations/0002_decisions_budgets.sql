-- Questions that people answer, and budgets over the jobs of a conversation.

-- ------------------------------------------------------------------------------------------------ decisions

-- One row a question. Ids come from the jobs' own sequence, so that one number never means two things.
create table agentrt.decisions(
  id         bigint primary key,
  job_id     bigint not null,
  step       text not null,
  question   text not null,
  options    text[] not null,
  who        text[],                 -- who may answer; null: anybody
  fallback   text,                   -- the answer when nobody gave one in time; null: DecisionExpired
  expires    timestamptz,            -- null: never
  answer     text,
  answered_by text,
  answered_at timestamptz,
  granted    boolean not null default false,  -- of a budget that is used up: the answer has been followed
  created_at timestamptz not null default agentrt.agentrt_now(),
  unique (job_id, step)
);
create index decisions_open on agentrt.decisions(id) where answer is null;

-- Ask a question as a step of an attempt. Returns as `record`, and the question's id and moment of expiry.
create function agentrt.open_decision(
  p_id bigint, p_fence bigint, p_step text, p_fingerprint text, p_place text, p_question text, p_options text[], p_who text[],
  p_fallback text, p_within float8)
returns table(owned boolean, id bigint, done boolean, output text, failure text, due_s float8) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare v_now timestamptz := agentrt.agentrt_now();
begin
  perform 1 from agentrt.jobs j where j.id = p_id and j.fence = p_fence and coalesce(j.status, '') = 'running' for share;
  owned := found;
  if not owned then
    return next;
    return;
  end if;
  insert into agentrt.steps(job_id, step, kind, fence, done, fingerprint, place, due)
  values (p_id, p_step, 'decide', p_fence, false, p_fingerprint, p_place, v_now + make_interval(secs => p_within))
  on conflict do nothing;
  if found then  -- a question of a step that was forgotten since (see retry, reopen) is not this one, and its links are void
    delete from agentrt.decisions d where d.job_id = p_id and d.step = p_step;
  end if;
  insert into agentrt.decisions(id, job_id, step, question, options, who, fallback, expires)
  select nextval(pg_get_serial_sequence('agentrt.jobs', 'id')), p_id, p_step, p_question, p_options, p_who, p_fallback, s.due
    from agentrt.steps s where s.job_id = p_id and s.step = p_step
  on conflict do nothing;
  return query
  select true, d.id, s.done, s.output::text, s.failure::text, extract(epoch from s.due - v_now)::float8
    from agentrt.steps s join agentrt.decisions d on d.job_id = s.job_id and d.step = s.step
   where s.job_id = p_id and s.step = p_step;
end$$;

-- Answer a question: p_id is its own id, or that of a job with one open question. The first valid answer wins.
-- Returns what is true: 'accepted', 'already' (who and what), 'expired', 'closed' (its job has ended), 'option', 'who'; null: no such
-- question.
create function agentrt.decide(p_id bigint, p_option text, p_by text)
returns table(verdict text, decision bigint, question text, options text[], who text[], answer text, answered_by text) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  v_id bigint := coalesce(
    (select d.id from agentrt.decisions d where d.id = p_id),
    (select min(d.id) from agentrt.decisions d where d.job_id = p_id and d.answer is null having count(*) = 1));
  v_live boolean;
  v_row agentrt.decisions;
  v_output text;
begin
  perform 1 from agentrt.jobs j where j.id = (select d.job_id from agentrt.decisions d where d.id = v_id)
     for no key update;  -- before the question, as an attempt that waits does
  v_live := found;
  select d.* into v_row from agentrt.decisions d where d.id = v_id for update;
  if v_row.id is null then
    return;
  end if;
  if v_row.answer is not null then
    verdict := 'already';
  elsif not v_live then
    verdict := 'closed';
  elsif v_row.expires <= agentrt.agentrt_now() then
    verdict := 'expired';
  elsif p_option <> all(v_row.options) then
    verdict := 'option';
  elsif p_by <> all(v_row.who) then
    verdict := 'who';
  else
    v_output := json_build_object('option', p_option, 'by', p_by, 'at', agentrt.agentrt_now())::text;
    if agentrt.answer(v_row.job_id, v_row.step, v_output, null) then
      update agentrt.decisions d set answer = p_option, answered_by = p_by, answered_at = agentrt.agentrt_now() where d.id = v_row.id
      returning d.* into v_row;
      verdict := 'accepted';
    else
      verdict := 'expired';  -- the attempt has recorded so, by its own clock
    end if;
  end if;
  return query select verdict, v_row.id, v_row.question, v_row.options, v_row.who, v_row.answer, v_row.answered_by;
end$$;

-- ------------------------------------------------------------------------------------------------ budgets

-- One row a job that has a budget: it and all that follows from it pay from here, and from the budget above.
create table agentrt.budgets(
  id         bigint primary key,     -- the job
  parent     bigint,                 -- the budget above
  usd_max numeric, tokens_max bigint, jobs_max int,          -- null: no limit
  usd_grant numeric, tokens_grant bigint, jobs_grant int,    -- what 'continue' adds
  hops_max   int,
  ask        boolean not null,       -- a person is asked when it is used up
  usd numeric not null default 0, tokens bigint not null default 0, jobs int not null default 1
) with (fillfactor = 50);

-- Give a running job its budget, once. Returns the account that its work pays from, null when the attempt has lost the job.
create function agentrt.open_budget(
  p_id bigint, p_fence bigint, p_usd text, p_tokens bigint, p_jobs int, p_hops int, p_wall float8, p_ask boolean)
returns table(account bigint, deadline_s float8) language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare v_job agentrt.jobs;
begin
  select j.* into v_job from agentrt.jobs j
   where j.id = p_id and j.fence = p_fence and coalesce(j.status, '') = 'running' for no key update;
  if not found then
    return;
  end if;
  insert into agentrt.budgets(id, parent, usd_max, tokens_max, jobs_max, usd_grant, tokens_grant, jobs_grant, hops_max, ask)
  values (p_id, v_job.account, p_usd::numeric, p_tokens, p_jobs, p_usd::numeric, p_tokens, p_jobs, v_job.hops + p_hops, p_ask)
  on conflict do nothing;
  return query
  update agentrt.jobs j set account = p_id, deadline = least(j.deadline, agentrt.agentrt_now() + make_interval(secs => p_wall))
   where j.id = p_id returning j.account, extract(epoch from j.deadline - agentrt.agentrt_now())::float8;
end$$;

-- One that is used up, as text: what was spent, of how much.
create function agentrt.budget_text(b agentrt.budgets) returns text language sql immutable as $$
  select json_build_object('account', b.id, 'ask', b.ask, 'usd', b.usd, 'usd_max', b.usd_max, 'tokens', b.tokens,
                           'tokens_max', b.tokens_max, 'jobs', b.jobs, 'jobs_max', b.jobs_max)::text
$$;

-- Add what was spent to an account and those above it. Returns the text of the first that is now beyond its limit, else null.
-- Locks: the accounts, from the inner to the outer.
create function agentrt.charge(p_account bigint, p_usd numeric, p_tokens bigint) returns text language plpgsql as $$
declare
  v_row agentrt.budgets;
  v_exceeded text;
begin
  while p_account is not null loop
    update agentrt.budgets b set usd = b.usd + coalesce(p_usd, 0), tokens = b.tokens + coalesce(p_tokens, 0)
     where b.id = p_account returning b.* into v_row;
    exit when not found;
    if v_row.usd > v_row.usd_max or v_row.tokens > v_row.tokens_max then
      v_exceeded := coalesce(v_exceeded, agentrt.budget_text(v_row));
    end if;
    p_account := v_row.parent;
  end loop;
  return v_exceeded;
end$$;

-- Set something aside before it is spent, in a job's account and those above it, or nothing at all when one has not enough left.
-- Returns: whether the attempt owns the job, and the text of the account that has not enough.
create function agentrt.reserve(p_id bigint, p_fence bigint, p_usd text, p_tokens bigint)
returns table(owned boolean, exceeded text) language plpgsql as $$
declare
  v_account bigint;
  v_row agentrt.budgets;
begin
  select j.account into v_account from agentrt.jobs j
   where j.id = p_id and j.fence = p_fence and coalesce(j.status, '') = 'running' for share;
  owned := found;
  for v_row in with recursive chain as (
        select b.*, 1 as depth from agentrt.budgets b where b.id = v_account
        union all
        select b.*, c.depth + 1 from chain c join agentrt.budgets b on b.id = c.parent)
      select b.* from chain c join agentrt.budgets b on b.id = c.id order by c.depth for update of b loop
    if v_row.usd + p_usd::numeric > v_row.usd_max or v_row.tokens + p_tokens > v_row.tokens_max then
      exceeded := agentrt.budget_text(v_row);
      exit;
    end if;
  end loop;
  if owned and exceeded is null then
    perform agentrt.charge(v_account, p_usd::numeric, p_tokens);
  end if;
  return next;
end$$;

-- Correct a reservation by the difference to what was spent. As `reserve`, but it is always booked.
create function agentrt.settle(p_id bigint, p_usd text, p_tokens bigint) returns text language sql as $$
  select agentrt.charge(j.account, p_usd::numeric, p_tokens) from agentrt.jobs j where j.id = p_id
$$;

-- Count jobs that are about to be sent, and their depth, against an account and those above it. Raises AR002.
create function agentrt.charge_jobs(p_account bigint, p_hops int, p_count int) returns void language plpgsql as $$
declare v_row agentrt.budgets;
begin
  while p_account is not null loop
    update agentrt.budgets b set jobs = b.jobs + p_count where b.id = p_account returning b.* into v_row;
    exit when not found;
    if v_row.jobs > v_row.jobs_max or p_hops > v_row.hops_max then
      raise exception 'agentrt: budget' using errcode = 'AR002', detail = (
        agentrt.budget_text(v_row)::jsonb || jsonb_build_object('hops', p_hops > v_row.hops_max))::text;
    end if;
    p_account := v_row.parent;
  end loop;
end$$;

-- Somebody said 'continue' to this question: once more what was granted at first, once.
create function agentrt.extend_budget(p_account bigint, p_job bigint, p_step text) returns void language sql as $$
  with g as (update agentrt.decisions d set granted = true where d.job_id = p_job and d.step = p_step and not d.granted returning 1)
  update agentrt.budgets set usd_max = greatest(usd, usd_max) + usd_grant, tokens_max = greatest(tokens, tokens_max) + tokens_grant,
                             jobs_max = greatest(jobs, jobs_max) + jobs_grant
   where id = p_account and exists (select 1 from g)
$$;
