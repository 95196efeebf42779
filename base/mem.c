/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#define HUGE_PAGE ((size_t)2 << 20)

void *mx_calloc(size_t n, size_t size)
{
	return calloc(n ? n : 1, size ? size : 1);
}

void *mx_realloc(void *p, size_t n, size_t size)
{
	if (size && n > SIZE_MAX / size)
		return NULL;
	size_t bytes = n * size;
	return realloc(p, bytes ? bytes : 1);
}

void *mx_map(size_t bytes)
{
	void *p =
		mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	mx_map_hint_huge(p, bytes);
	return p;
}

void mx_map_hint_huge(void *p, size_t bytes)
{
	if (bytes >= HUGE_PAGE)
		(void)madvise(p, bytes, MADV_HUGEPAGE); /* failing costs only speed */
}

void mx_unmap(void *p, size_t bytes)
{
	if (p)
		munmap(p, bytes ? bytes : 1);
}

void mx_heap_setup(void)
{
#ifdef __GLIBC__
	/* By default every thread may get a malloc arena, and both thresholds grow with the size of
	 * freed blocks. */
	(void)mallopt(M_ARENA_MAX, 2);
	(void)mallopt(M_MMAP_THRESHOLD, 256 << 10);
	(void)mallopt(M_TRIM_THRESHOLD, 512 << 10);
#endif
}

void mx_heap_trim(void)
{
	/* Under a sanitizer the C library's own heap is unused and not initialised; two threads that
	 * trim it at once break it. */
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	(void)malloc_trim(0);
#endif
}

struct mx_arena_region {
	struct mx_arena_region *next;
	size_t size, used;
	_Alignas(16) unsigned char data[];
};

#define REGION_BYTES ((size_t)16 << 10)

void *mx_arena_alloc(struct mx_arena *a, size_t bytes)
{
	if (bytes > SIZE_MAX / 2)
		return NULL;
	bytes = mx_round_up(bytes ? bytes : 1, 16);
	if (a->limit && (bytes > a->limit || a->used > a->limit - bytes))
		return NULL;
	struct mx_arena_region *c = a->head;
	if (!c || c->size - c->used < bytes) {
		size_t size = bytes > REGION_BYTES ? bytes : REGION_BYTES;
		c = calloc(1, sizeof *c + size);
		if (!c)
			return NULL;
		c->size = size;
		c->next = a->head;
		a->head = c;
	}
	void *p = c->data + c->used;
	c->used += bytes;
	a->used += bytes;
	return p;
}

char *mx_arena_strndup(struct mx_arena *a, const char *s, size_t n)
{
	char *p = n < SIZE_MAX ? mx_arena_alloc(a, n + 1) : NULL;
	if (p && n)
		memcpy(p, s, n);
	return p;
}

void mx_arena_free(struct mx_arena *a)
{
	if (!a)
		return;
	for (struct mx_arena_region *c = a->head; c;) {
		struct mx_arena_region *next = c->next;
		free(c);
		c = next;
	}
	a->head = NULL;
	a->used = 0;
}
