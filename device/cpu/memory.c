/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the CPU device, which is the host's: copies are done on return, and wait has nothing to
 * do. */
#include "base/mem.h"
#include "device/convert.h"
#include "device/cpu/impl.h"

/* In front of every allocation, in a cache line of its own. */
struct header {
	size_t bytes; /* mapped, with the header */
};
#define HEADER 64

mx_status mx_cpu_alloc(struct mx_device *d, size_t bytes, void **out)
{
	(void)d;
	if (bytes > SIZE_MAX - HEADER)
		return MX_E_NOMEM;
	struct header *h = mx_map(bytes + HEADER);
	if (!h)
		return MX_E_NOMEM;
	h->bytes = bytes + HEADER;
	*out = (unsigned char *)h + HEADER;
	return MX_OK;
}

void mx_cpu_release(struct mx_device *d, void *p)
{
	(void)d;
	if (!p)
		return;
	struct header *h = (void *)((unsigned char *)p - HEADER);
	mx_unmap(h, h->bytes);
}

mx_status mx_cpu_put(struct mx_device *d, uint32_t *to, const struct mx_word *words, size_t n)
{
	(void)d;
	for (size_t i = 0; i < n; i++)
		to[words[i].at] = words[i].value;
	return MX_OK;
}

mx_status mx_cpu_copy(struct mx_device *d, void *to, const void *from, size_t bytes)
{
	(void)d;
	if (bytes)
		memcpy(to, from, bytes);
	return MX_OK;
}

mx_status mx_cpu_zero(struct mx_device *d, void *to, size_t bytes)
{
	(void)d;
	if (bytes)
		memset(to, 0, bytes);
	return MX_OK;
}

mx_status mx_cpu_wait(struct mx_device *d)
{
	(void)d;
	return MX_OK;
}

mx_status mx_cpu_load(struct mx_device *d, void *to, enum mx_dtype to_dtype, const void *from,
                      enum mx_dtype dtype, size_t n)
{
	(void)d;
	if (!mx_converts(to_dtype, dtype))
		return MX_E_UNSUPPORTED;
	if (n)
		mx_convert(to, to_dtype, from, dtype, n);
	return MX_OK;
}

/* ---- recording: not supported, since it would not be faster on a CPU ---- */

mx_status mx_cpu_record(struct mx_device *d)
{
	(void)d;
	return MX_E_UNSUPPORTED;
}

mx_status mx_cpu_recorded(struct mx_device *d, struct mx_recording **out)
{
	(void)d, (void)out;
	return MX_E_UNSUPPORTED;
}

mx_status mx_cpu_replay(struct mx_device *d, struct mx_recording *r)
{
	(void)d, (void)r;
	return MX_E_UNSUPPORTED;
}

void mx_cpu_forget(struct mx_device *d, struct mx_recording *r)
{
	(void)d, (void)r;
}
