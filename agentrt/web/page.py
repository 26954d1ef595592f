"""The page: one document without anything from elsewhere, drawn in the browser from `/state.json`.

Texts from the database become text nodes only, never markup; the policy lets no other script or style run than these.
"""

from __future__ import annotations

import base64
import hashlib

base_style = """
:root {
  color-scheme: light dark;
  --ground: #f6f7f9; --card: #ffffff; --ink: #1b2430; --soft: #647082; --faint: #b3bbc7; --line: #e3e7ed;
  --scheduled: #0e7490; --ready: #1d4ed8; --blocked: #7e22ce; --running: #b45309; --parked: #0f766e;
  --succeeded: #15803d; --failed: #b91c1c; --cancelled: #57606d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #12161c; --card: #1a2028; --ink: #e4e9f0; --soft: #93a0b2; --faint: #4d5866; --line: #2a323d;
    --scheduled: #53c7de; --ready: #7fb0ff; --blocked: #cf9bff; --running: #f5b54a; --parked: #4fd1c0;
    --succeeded: #58d68d; --failed: #ff8585; --cancelled: #a3adba;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 14px/1.45 system-ui, "Segoe UI", sans-serif; }
main, header { max-width: 1240px; margin: 0 auto; padding: 0 20px; }
header { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 14px; padding-top: 20px; }
h1 { font-size: 20px; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 13px; margin: 26px 0 8px; color: var(--soft); font-weight: 600; }
.soft { color: var(--soft); }
.right { margin-left: auto; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; overflow-x: auto; }
.pill { color: var(--c, var(--soft)); background: color-mix(in srgb, var(--c, var(--soft)) 13%, transparent);
  border-radius: 99px; padding: 1px 9px; font-size: 12px; font-weight: 550; white-space: nowrap; }
.scheduled { --c: var(--scheduled); } .ready { --c: var(--ready); } .blocked { --c: var(--blocked); }
.running { --c: var(--running); } .parked { --c: var(--parked); } .succeeded, .good { --c: var(--succeeded); }
.failed, .gone, .bad { --c: var(--failed); } .cancelled, .draining { --c: var(--cancelled); }
"""

_style = (
    base_style
    + """
#problem { margin-top: 16px; padding: 10px 14px; color: var(--failed); border-color: var(--failed); }
.old { opacity: .45; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 7px 12px; text-align: left; white-space: nowrap; vertical-align: top; }
th { color: var(--soft); font-size: 12px; font-weight: 500; border-bottom: 1px solid var(--line); }
tr + tr td { border-top: 1px solid var(--line); }
td.wide { width: 99%; white-space: normal; overflow-wrap: anywhere; unicode-bidi: isolate; min-width: 220px; }
td.list { width: 99%; white-space: normal; min-width: 160px; }
td.error { color: var(--failed); font: 12px/1.55 ui-monospace, Menlo, Consolas, monospace; }
th.number, td.number { text-align: right; }
td.zero { color: var(--faint); }
td.name { font-weight: 550; max-width: 320px; overflow: hidden; text-overflow: ellipsis; unicode-bidi: isolate; }
td .key { color: var(--soft); font-weight: 400; }
td.none { color: var(--soft); padding: 14px 12px; }
.after { border-left: 1px solid var(--line); }
td.error.cancelled { color: var(--soft); }
td.count { color: var(--c); font-weight: 600; }
footer { height: 32px; }
@media (max-width: 700px) { main, header { padding: 0 10px; } th, td { padding: 6px 8px; } td.name { max-width: 170px; } }
"""
)

_script = r"""
'use strict';
const every_ms = 2000, answer_ms = 8000;
const live = ['scheduled', 'ready', 'blocked', 'running', 'parked'], ended = ['succeeded', 'failed', 'cancelled'];
const wrong = {database: 'no database', listener: 'not listening', heart: 'no heart', loops: 'a loop died',
  accepting: 'draining'};
const at = id => document.getElementById(id);

// What would turn the text around it, or cannot be seen, is spelled out.
const plain = text => String(text).replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g,
  sign => '\\u' + sign.charCodeAt(0).toString(16).padStart(4, '0'));

function make(tag, style, ...inside) {
  const element = document.createElement(tag);
  element.className = style;
  element.append(...inside.map(part => part instanceof Node ? part : plain(part)));
  return element;
}
const cell = (style, ...inside) => make('td', style, ...inside);
const pill = (style, text) => make('span', 'pill ' + style, text);

function length(seconds) {
  if (seconds === null || seconds === undefined) return '';
  if (seconds < 0.0995) return Math.round(seconds * 1000) + ' ms';
  if (seconds < 9.95) return seconds.toFixed(1) + ' s';
  for (const [size, unit] of [[1, 's'], [60, 'min'], [3600, 'h']])
    if (seconds < size * (unit === 'h' ? 48 : 120)) return Math.round(seconds / size) + ' ' + unit;
  return Math.round(seconds / 86400) + ' d';
}

function fill(id, rows, nothing, columns) {
  if (rows.length === 0) {
    const row = cell('none', nothing);
    row.colSpan = columns;
    rows = [make('tr', '', row)];
  }
  at(id).replaceChildren(...rows);
}

function supervisorRow(row, process) {
  const here = row.id === process.id;
  return make('tr', '',
    cell('name', row.host + ':' + row.pid), cell('', pill(row.state === 'running' ? 'good' : row.state, row.state)),
    cell('number', here ? process.running + ' / ' + row.slots : row.slots), cell('number', length(row.up_s)),
    cell('number', length(row.silent_s)), cell('list soft', row.agents.join(', ')));
}

function agentRow(row) {
  const count = (state, style) => {
    const jobs = row.counts[state] || 0;
    return cell('number ' + style + (jobs ? ' count ' + state : ' zero'), jobs);
  };
  const unfinished = live.some(state => row.counts[state]);
  return make('tr', '',
    cell('name', row.agent, ...(unfinished && !row.served ? [' ', pill('bad', 'no worker')] : [])),
    ...live.map(state => count(state, '')), ...ended.map((state, i) => count(state, i ? '' : 'after')));
}

function jobRow(row) {
  const took = row.due_s !== null ? 'in ' + length(row.due_s) : length(row.ran_s);
  const attempts = row.attempt + (row.max_attempts ? ' / ' + row.max_attempts : '');
  const reason = row.reason && !['error', row.state].includes(row.reason) ? row.reason + (row.error ? ': ' : '') : '';
  const key = row.key === null ? [] : [make('span', 'key', ' [' + row.key + ']')];
  return make('tr', '',
    cell('number soft', row.id), cell('name', row.agent, ...key),
    cell('', pill(row.state, row.state)), cell('number', length(row.age_s)), cell('number', took), cell('number', attempts),
    cell('wide error ' + row.state, reason + row.error));
}

function decisionRow(row) {
  return make('tr', '',
    cell('number soft', row.id), cell('name', row.agent), cell('number soft', row.job_id),
    cell('number', length(row.age_s)), cell('number', row.left_s === null ? 'never' : length(row.left_s)),
    cell('wide soft', row.who === null ? 'anybody' : row.who + (row.who === 1 ? ' person' : ' people')));
}

function draw(state) {
  const process = state.process, health = process.health;
  at('where').textContent = process.host + ':' + process.pid;
  at('ready').className = 'pill ' + (health.ok ? 'good' : 'bad');
  const why = Object.keys(wrong).filter(check => !health[check]).map(check => wrong[check]).join(', ');
  at('ready').textContent = health.ok ? 'ready' : 'not ready' + (why && ': ' + why);
  document.title = 'agentrt · ' + process.running + ' running';
  say(state.problem);
  if (state.problem !== null) return;
  fill('supervisors', state.supervisors.map(row => supervisorRow(row, process)), 'No supervisor has signed on.', 6);
  fill('agents', state.agents.map(agentRow), 'No agent has jobs.', 9);
  fill('jobs', state.jobs.map(jobRow), 'No job yet.', 7);
  at('questions').hidden = state.decisions.length === 0;
  fill('decisions', state.decisions.map(decisionRow), '', 6);
}

function say(problem) {
  at('problem').hidden = problem === null;
  at('problem').textContent = problem || '';
  at('tables').className = problem === null ? '' : 'old';
}

let timer = 0;
async function refresh() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const answer = await fetch('state.json', {cache: 'no-store', signal: AbortSignal.timeout(answer_ms)});
    if (!answer.ok) throw new Error('the supervisor answers ' + answer.status);
    const state = await answer.json();
    if (getSelection().isCollapsed) draw(state);  // what somebody is copying stays where it is
  } catch (error) {
    say('No answer from the supervisor: ' + error.message);
  }
  clearTimeout(timer);
  timer = setTimeout(refresh, every_ms);
}
document.addEventListener('visibilitychange', refresh);
refresh();
"""

_template = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>agentrt</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<header>
<h1>agentrt</h1><span id="ready" class="pill">…</span><span class="soft right">this process: <span id="where">…</span></span>
</header>
<main>
<noscript><p>This page is drawn by its script. Without one, read state.json and metrics.</p></noscript>
<div id="problem" class="card" hidden></div>
<div id="tables">
<h2>Supervisors</h2>
<div class="card"><table><thead><tr><th>process<th>state<th class="number">slots<th class="number">up<th class="number">last beat
<th>agents</tr></thead><tbody id="supervisors"></tbody></table></div>
<h2>Agents: unfinished jobs, and those that ended in the last hour</h2>
<div class="card"><table><thead><tr><th>agent<th class="number">scheduled<th class="number">ready<th class="number">blocked
<th class="number">running<th class="number">parked<th class="number after">succeeded<th class="number">failed
<th class="number">cancelled</tr></thead><tbody id="agents"></tbody></table></div>
<div id="questions" hidden>
<h2>Open questions: what they ask is shown by agentrt decide, and to those who got a link</h2>
<div class="card"><table><thead><tr><th class="number">id<th>agent<th class="number">job<th class="number">age
<th class="number">expires in<th>may answer</tr></thead><tbody id="decisions"></tbody></table></div>
</div>
<h2>The newest jobs</h2>
<div class="card"><table><thead><tr><th class="number">id<th>agent<th>state<th class="number">age<th class="number">ran, due
<th class="number">attempts<th>last error</tr></thead><tbody id="jobs"></tbody></table></div>
</div>
</main>
<footer></footer>
<script>{script}</script>
</body>
</html>
"""


def policy_hash(text: str) -> str:
    """As a content security policy names an inline block (https://www.w3.org/TR/CSP3/#match-element-to-source-list)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


page = _template.replace("{style}", _style).replace("{script}", _script)
page_policy = (
    f"default-src 'none'; style-src {policy_hash(_style)}; script-src {policy_hash(_script)}; connect-src 'self'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
