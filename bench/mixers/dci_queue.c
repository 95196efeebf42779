/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paper's index beside what mixers/dci does: Prioritized DCI (Li and Malik 2017) as IceFormer
 * (Mao, Ester and Li 2023) uses it, over sorted runs of keys. Prints the time of a query and its
 * recall of the 32 largest products, by the number of candidates; bench/mixers/dci has the time of
 * whole queries with ours.
 *
 *   bench/mixers/dci_queue [-n keys] [-r run] [-m simple] [-l composite]
 *
 * Keys are lifted to a sphere. A simple index of a run has the run's keys sorted by their
 * projection on a direction; `simple` of them make a composite, of which there are `composite`. A
 * heap over all lists of all runs visits keys in order of their projected distance from the query;
 * a key is a candidate when all lists of a composite have met it.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define DIM     128
#define TOP     32
#define QUERIES 16

struct entry {
	float at; /* projection */
	uint32_t key;
};

/* The next key of a list: of those before `lo` and from `hi` on, the closer one. */
struct cursor {
	float distance;
	uint32_t list, lo, hi;
};

struct bench {
	uint32_t n, run, m, l;
	uint32_t runs, lists; /* lists = runs * l * m */
	float *keys;          /* [n][DIM + 1], lifted */
	float *directions;    /* [l * m][DIM + 1] */
	struct entry *sorted; /* [lists][run] */
	struct cursor *heap;
	uint32_t n_heap;
	uint8_t *met; /* [l][n] */
	uint64_t seed, visits;
};

static void *need(size_t n, size_t size)
{
	void *p = calloc(n, size);
	if (!p)
		exit(1);
	return p;
}

static float normal(struct bench *b)
{
	double u[2];
	for (int i = 0; i < 2; i++) {
		b->seed = b->seed * 6364136223846793005u + 1442695040888963407u;
		u[i] = ((double)(b->seed >> 11) + 0.5) * 0x1p-53;
	}
	return (float)(sqrt(-2 * log(u[0])) * cos(2 * M_PI * u[1]));
}

static float dot(const float *a, const float *c, uint32_t n)
{
	float sum[16] = {0}, all = 0;
	for (uint32_t i = 0; i < n / 16 * 16; i += 16)
		for (uint32_t k = 0; k < 16; k++)
			sum[k] += a[i + k] * c[i + k];
	for (uint32_t k = 0; k < 16; k++)
		all += sum[k];
	for (uint32_t i = n / 16 * 16; i < n; i++)
		all += a[i] * c[i];
	return all;
}

static int by_projection(const void *a, const void *c)
{
	float x = ((const struct entry *)a)->at, y = ((const struct entry *)c)->at;
	return (x > y) - (x < y);
}

static void build(struct bench *b)
{
	float longest = 0;
	for (uint32_t j = 0; j < b->n; j++) {
		float *k = b->keys + (size_t)j * (DIM + 1);
		for (uint32_t i = 0; i < DIM; i++)
			k[i] = normal(b);
		longest = fmaxf(longest, sqrtf(dot(k, k, DIM)));
	}
	for (uint32_t j = 0; j < b->n; j++) {
		float *k = b->keys + (size_t)j * (DIM + 1);
		for (uint32_t i = 0; i < DIM; i++)
			k[i] /= longest;
		k[DIM] = sqrtf(fmaxf(0, 1 - dot(k, k, DIM)));
	}
	for (size_t i = 0; i < (size_t)b->l * b->m * (DIM + 1); i++)
		b->directions[i] = normal(b);
	for (uint32_t list = 0; list < b->lists; list++) {
		const float *u = b->directions + (size_t)(list % (b->l * b->m)) * (DIM + 1);
		struct entry *e = b->sorted + (size_t)list * b->run;
		for (uint32_t i = 0; i < b->run; i++) {
			e[i].key = list / (b->l * b->m) * b->run + i;
			e[i].at = dot(u, b->keys + (size_t)e[i].key * (DIM + 1), DIM + 1);
		}
		qsort(e, b->run, sizeof *e, by_projection);
	}
}

/* ---- heap ---- */

static void sift_down(struct bench *b, uint32_t i)
{
	struct cursor c = b->heap[i];
	for (uint32_t child; (child = 2 * i + 1) < b->n_heap; i = child) {
		if (child + 1 < b->n_heap && b->heap[child + 1].distance < b->heap[child].distance)
			child++;
		if (b->heap[child].distance >= c.distance)
			break;
		b->heap[i] = b->heap[child];
	}
	b->heap[i] = c;
}

static void set_distance(const struct bench *b, struct cursor *c, float at)
{
	const struct entry *e = b->sorted + (size_t)c->list * b->run;
	float below = c->lo > 0 ? at - e[c->lo - 1].at : INFINITY;
	float above = c->hi < b->run ? e[c->hi].at - at : INFINITY;
	c->distance = below < above ? below : above;
}

/* ---- a query ---- */

static uint32_t search(struct bench *b, const float *q, uint32_t wanted, uint32_t *out)
{
	uint32_t lists = b->l * b->m, n = 0;
	float at[64];
	for (uint32_t i = 0; i < lists; i++)
		at[i] = dot(q, b->directions + (size_t)i * (DIM + 1), DIM + 1);
	memset(b->met, 0, (size_t)b->l * b->n);
	b->n_heap = b->lists;
	for (uint32_t list = 0; list < b->lists; list++) {
		const struct entry *e = b->sorted + (size_t)list * b->run;
		uint32_t lo = 0, hi = b->run;
		while (lo < hi) {
			uint32_t middle = (lo + hi) / 2;
			if (e[middle].at < at[list % lists])
				lo = middle + 1;
			else
				hi = middle;
		}
		b->heap[list] = (struct cursor){.list = list, .lo = lo, .hi = lo};
		set_distance(b, &b->heap[list], at[list % lists]);
	}
	for (uint32_t i = b->n_heap / 2; i-- > 0;)
		sift_down(b, i);
	while (n < wanted && b->heap[0].distance < INFINITY) {
		struct cursor *c = &b->heap[0];
		const struct entry *e = b->sorted + (size_t)c->list * b->run;
		float x = at[c->list % lists];
		bool below = c->lo > 0 && (c->hi == b->run || x - e[c->lo - 1].at <= e[c->hi].at - x);
		uint32_t key = below ? e[--c->lo].key : e[c->hi++].key;
		uint32_t composite = c->list % lists / b->m;
		if (++b->met[(size_t)composite * b->n + key] == b->m)
			out[n++] = key; /* by several composites perhaps: counted, as a score is */
		b->visits++;
		set_distance(b, c, x);
		sift_down(b, 0);
	}
	return n;
}

static double recall(const struct bench *b, const float *q, const uint32_t *found, uint32_t n)
{
	float *s = need(b->n, sizeof *s);
	uint32_t hits = 0;
	for (uint32_t j = 0; j < b->n; j++)
		s[j] = dot(q, b->keys + (size_t)j * (DIM + 1), DIM);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t above = 0;
		bool twice = false;
		for (uint32_t k = 0; k < i; k++)
			twice |= found[k] == found[i];
		for (uint32_t j = 0; j < b->n && above < TOP; j++)
			above += s[j] > s[found[i]];
		hits += above < TOP && !twice;
	}
	free(s);
	return (double)hits / TOP;
}

int main(int argc, char **argv)
{
	struct bench b = {.n = 16384, .run = 256, .m = 4, .l = 2, .seed = 1};
	for (int c; (c = getopt(argc, argv, "n:r:m:l:")) != -1;) {
		uint32_t v = (uint32_t)strtoul(optarg ? optarg : "0", NULL, 10);
		switch (c) {
		case 'n': b.n = v; break;
		case 'r': b.run = v; break;
		case 'm': b.m = v; break;
		case 'l': b.l = v; break;
		default: return 2;
		}
	}
	if (!b.run || !b.n || b.n % b.run || !b.m || !b.l || b.m > 16 || b.l > 4)
		return 2;
	b.runs = b.n / b.run;
	b.lists = b.runs * b.l * b.m;
	b.keys = need((size_t)b.n * (DIM + 1), sizeof *b.keys);
	b.directions = need((size_t)b.l * b.m * (DIM + 1), sizeof *b.directions);
	b.sorted = need((size_t)b.lists * b.run, sizeof *b.sorted);
	b.heap = need(b.lists, sizeof *b.heap);
	b.met = need((size_t)b.l * b.n, 1);
	uint32_t *found = need((size_t)b.l * b.n, sizeof *found);
	build(&b);
	printf("%u keys in runs of %u, %u composites of %u\ncandidates  us/query  visits  recall\n",
	       b.n, b.run, b.l, b.m);
	for (uint32_t wanted = 64; wanted <= b.n / 4; wanted *= 4) {
		double seconds = 0, hits = 0;
		b.visits = 0;
		b.seed = 7;
		for (int i = 0; i < QUERIES; i++) {
			float q[DIM + 1] = {0};
			for (uint32_t d = 0; d < DIM; d++)
				q[d] = normal(&b);
			float length = sqrtf(dot(q, q, DIM));
			for (uint32_t d = 0; d < DIM; d++)
				q[d] /= length;
			uint64_t start = mx_now_ns();
			uint32_t n = search(&b, q, wanted, found);
			seconds += (double)(mx_now_ns() - start) * 1e-9;
			hits += recall(&b, q, found, n);
		}
		printf("%10u  %8.0f  %6.0f  %6.3f\n", wanted, seconds / QUERIES * 1e6,
		       (double)b.visits / QUERIES, hits / QUERIES);
	}
	free(b.keys);
	free(b.directions);
	free(b.sorted);
	free(b.heap);
	free(b.met);
	free(found);
	return 0;
}
