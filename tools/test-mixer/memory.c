/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/test-mixer/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define GUARD_SIZE 4096

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define FORBID(p, n) __asan_poison_memory_region((p), (n))
#define ALLOW(p, n)  __asan_unpoison_memory_region((p), (n))
#else
#define FORBID(p, n) ((void)(p), (void)(n))
#define ALLOW(p, n)  ((void)(p), (void)(n))
#endif

void (*test_failed)(const char *text);

void test_fail(const char *fmt, ...)
{
	char text[640];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	test_failed(text);
	abort(); /* not reached */
}

void *allocate(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);
	MUST(p);
	return p;
}

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

/* ---- blocks ---- */

void block_alloc(struct block *b, struct mx_device *of, size_t size, size_t align)
{
	size_t before = GUARD_SIZE + align, all = before + size + GUARD_SIZE;
	b->size = size;
	b->of = of;
	if (of)
		MUST(of->ops->host_alloc(of, all, (void **)&b->all) == MX_OK);
	else
		MUST(posix_memalign((void **)&b->all, GUARD_SIZE, all) == 0);
	memset(b->all, GUARD, all);
	b->p = b->all + before;
	FORBID(b->all, before);
	FORBID(b->p + size, GUARD_SIZE);
}

bool is_guard(const unsigned char *p, size_t n)
{
	return n == 0 || (p[0] == GUARD && !memcmp(p, p + 1, n - 1));
}

/* The address sanitizer watches guards by itself. */
static void check_guard(const unsigned char *p, size_t n, const char *what)
{
#ifdef __SANITIZE_ADDRESS__
	(void)p, (void)n, (void)what;
#else
	if (!is_guard(p, n))
		test_fail("wrote to memory around %s", what);
#endif
}

void block_check(const struct block *b, const char *what)
{
	check_guard(b->all, (size_t)(b->p - b->all), what);
	check_guard(b->p + b->size, GUARD_SIZE, what);
}

void block_free(struct block *b)
{
	if (b->all)
		ALLOW(b->all, (size_t)(b->p - b->all) + b->size + GUARD_SIZE);
	if (b->of)
		b->of->ops->host_release(b->of, b->all);
	else
		free(b->all);
	*b = (struct block){0};
}

/* ---- pools ---- */

unsigned char *pool_at(const struct pool *p, uint32_t i, uint32_t layer)
{
	return p->mem.p + ((size_t)i * p->n_layers + layer) * p->part;
}

void pool_open(struct pool *p, struct mx_device *of, size_t bytes, uint32_t n, uint32_t n_layers,
               size_t align)
{
	p->bytes = bytes;
	p->part = round_up(bytes + 64, align);
	p->n = n;
	p->n_layers = n_layers;
	p->refs = allocate(n, sizeof(*p->refs));
	block_alloc(&p->mem, of, p->part * n * n_layers, align);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t l = 0; l < n_layers; l++)
			memset(pool_at(p, i, l), POISON, bytes);
	FORBID(p->mem.p, p->mem.size);
}

void pool_check(const struct pool *p, const char *what)
{
	block_check(&p->mem, what);
	for (uint32_t i = 0; i < p->n; i++)
		for (uint32_t l = 0; l < p->n_layers; l++)
			check_guard(pool_at(p, i, l) + p->bytes, p->part - p->bytes, what);
}

void pool_close(struct pool *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		MUST(p->refs[i] == 0);
	free(p->refs);
	block_free(&p->mem);
}

uint32_t pool_take(struct pool *p, struct rng *rng)
{
	uint32_t i = rng_below(rng, p->n);
	bool poison = rng_below(rng, 2);
	for (uint32_t tries = 0; p->refs[i]; i = (i + 1) % p->n)
		MUST(tries++ < p->n);
	p->refs[i] = 1;
	for (uint32_t l = 0; l < p->n_layers; l++) {
		ALLOW(pool_at(p, i, l), p->bytes);
		if (poison)
			memset(pool_at(p, i, l), POISON, p->bytes);
	}
	return i;
}

void pool_drop(struct pool *p, uint32_t i)
{
	MUST(p->refs[i] > 0);
	if (--p->refs[i] == 0)
		for (uint32_t l = 0; l < p->n_layers; l++)
			FORBID(pool_at(p, i, l), p->bytes);
}

uint64_t pool_sum_shared(const struct pool *p) /* FNV-1a over words */
{
	uint64_t sum = 0xcbf29ce484222325ull, word;
	for (uint32_t i = 0; i < p->n; i++)
		for (uint32_t l = 0; p->refs[i] > 1 && l < p->n_layers; l++)
			for (size_t j = 0; j + 8 <= p->bytes; j += 8) {
				memcpy(&word, pool_at(p, i, l) + j, 8);
				sum = (sum ^ word) * 0x100000001b3ull;
			}
	return sum;
}
