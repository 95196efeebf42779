/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records steps: the stream is captured into a CUDA graph, which one call launches. A few hundred
 * launches a step would cost the host more time than a small model takes to run. The graph
 * preserves that a kernel may begin before the previous one has ended (launch.cuh).
 */
#include "device/cuda/impl.h"

#include <stdlib.h>

struct mx_recording {
	cudaGraphExec_t exec;
};

/* Captures only this thread's calls: other models, on threads of their own, may allocate and copy
 * meanwhile. */
mx_status mx_cuda_record(struct mx_device *d)
{
	return mx_cuda_check(
		d, cudaStreamBeginCapture(mx_cuda_stream(d), cudaStreamCaptureModeThreadLocal),
		"beginning to record a step");
}

static mx_status instantiate(struct mx_device *d, cudaGraph_t graph, struct mx_recording *r)
{
	mx_status st = mx_cuda_check(d, cudaGraphInstantiate(&r->exec, graph, 0), "making a graph");
	if (st != MX_OK)
		return st;
	return mx_cuda_check(d, cudaGraphUpload(r->exec, mx_cuda_stream(d)), "uploading a graph");
}

mx_status mx_cuda_recorded(struct mx_device *d, struct mx_recording **out)
{
	cudaGraph_t graph = NULL;
	struct mx_recording *r = NULL;
	mx_status st =
		mx_cuda_check(d, cudaStreamEndCapture(mx_cuda_stream(d), &graph), "recording a step");
	if (st == MX_OK && !(r = calloc(1, sizeof *r)))
		st = MX_E_NOMEM;
	if (st == MX_OK)
		st = instantiate(d, graph, r);
	if (graph)
		cudaGraphDestroy(graph);
	if (st != MX_OK) {
		mx_cuda_forget(d, r);
		return st;
	}
	*out = r;
	return MX_OK;
}

mx_status mx_cuda_replay(struct mx_device *d, struct mx_recording *r)
{
	return mx_cuda_check(d, cudaGraphLaunch(r->exec, mx_cuda_stream(d)), "replaying a step");
}

void mx_cuda_forget(struct mx_device *d, struct mx_recording *r)
{
	if (!r)
		return;
	(void)mx_cuda_bind(d);
	if (r->exec)
		cudaGraphExecDestroy(r->exec);
	free(r);
}
