// SPDX-License-Identifier: Apache-2.0
// The figures of each model over the last two minutes, from /metrics.
import {histogram, minus, parse, plus, value} from './prometheus.js';

const KEPT = 121; // samples, one a second
const WINDOW = 10; // samples over which shares are taken: what they are of comes now and then

// A figure's name here -> its name there.
const NUMBERS = {
  running: 'vllm:num_requests_running', waiting: 'vllm:num_requests_waiting',
  output: 'vllm:generation_tokens_total', prompt: 'vllm:prompt_tokens_total', cached: 'vllm:prompt_tokens_cached_total',
  queries: 'vllm:prefix_cache_queries_total', hits: 'vllm:prefix_cache_hits_total',
  drafted: 'vllm:spec_decode_num_draft_tokens_total', accepted: 'vllm:spec_decode_num_accepted_tokens_total',
  preemptions: 'vllm:num_preemptions_total', steps: 'mixd_steps_total',
  pages: 'mixd_pages', pagesUsed: 'mixd_pages_used', pagesCached: 'mixd_pages_cached',
  slots: 'mixd_slots', slotsUsed: 'mixd_slots_used', snapshots: 'mixd_snapshots', snapshotsUsed: 'mixd_snapshots_used',
};
const HISTOGRAMS = {
  ttft: ['vllm:time_to_first_token_seconds', {}], itl: ['vllm:inter_token_latency_seconds', {}],
  forward: ['mixd_step_phase_seconds', {phase: 'forward'}], sample: ['mixd_step_phase_seconds', {phase: 'sample'}],
  host: ['mixd_step_phase_seconds', {phase: 'host'}],
};

function figuresOf(samples, model) {
  const f = {};
  for (const [name, theirs] of Object.entries(NUMBERS)) f[name] = value(samples, theirs, {model_name: model});
  for (const [name, [theirs, labels]] of Object.entries(HISTOGRAMS))
    f[name] = histogram(samples, theirs, {...labels, model_name: model});
  return f;
}

function sum(a, b) {
  const f = {};
  for (const name of Object.keys(NUMBERS)) f[name] = a[name] === null ? b[name] : b[name] === null ? a[name] : a[name] + b[name];
  for (const name of Object.keys(HISTOGRAMS)) f[name] = plus(a[name], b[name]);
  return f;
}

/** {t, models: name -> figures} of one text. */
export function sample(text, t) {
  const samples = parse(text);
  const names = (samples.get('mixd_model_ready') || []).filter(s => s.value).map(s => s.labels.model_name);
  return {t, models: new Map(names.map(n => [n, figuresOf(samples, n)]))};
}

export class History {
  samples = [];

  add(s) {
    const last = this.samples[this.samples.length - 1];
    // after a pause, or a restart of the server, what came before says nothing
    if (last && (s.t - last.t > 10 || this.pick(s, '')?.steps < this.pick(last, '')?.steps)) this.samples = [];
    this.samples.push(s);
    if (this.samples.length > KEPT) this.samples.shift();
  }

  models() {
    return [...(this.samples[this.samples.length - 1]?.models.keys() || [])];
  }

  /** The latest figures of all models together; undefined if there are none. */
  latest() {
    return this.samples.length ? this.pick(this.samples[this.samples.length - 1], '') : undefined;
  }

  /** The figures of a model in a sample, or of all together; undefined if there are none. */
  pick(s, model) {
    if (model) return s.models.get(model);
    const all = [...s.models.values()];
    return all.length ? all.reduce(sum) : undefined;
  }

  /** [{seconds, now, before, past}]: the figures of each sample, of the one before it and of some seconds
   * ago, oldest first and as many as two minutes have; null where there is no sample yet. */
  columns(model) {
    const picked = this.samples.map(s => this.pick(s, model));
    const out = this.samples.slice(1).map((s, i) => picked[i] && picked[i + 1] &&
      {seconds: s.t - this.samples[i].t, now: picked[i + 1], before: picked[i], past: picked[Math.max(0, i + 1 - WINDOW)]} || null);
    return [...Array(KEPT - 1 - out.length).fill(null), ...out];
  }

  /** A histogram of the last two minutes. */
  recent(model, name) {
    const first = this.samples[0] && this.pick(this.samples[0], model);
    const last = this.samples.length && this.pick(this.samples[this.samples.length - 1], model);
    return first && last ? minus(last[name], first[name]) : null;
  }
}
