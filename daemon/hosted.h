/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One model and everything that belongs to it: plan, checkpoint, tokenizer, chat
 * template, engine and scheduler. One thread at a time calls these functions.
 */
#ifndef MX_DAEMON_HOSTED_H
#define MX_DAEMON_HOSTED_H

#include "daemon/cluster.h"
#include "daemon/config.h"
#include "daemon/kv_events/publisher.h"
#include "daemon/serve/service.h"
#include "engine/load.h"

/* The caller fills the first part; the rest is zero before anything was opened. */
struct mx_hosted {
	const struct mx_config_model *settings; /* needed until the model is loaded */
	struct mx_config_scheduler scheduler;
	bool first;                                  /* its plan counts the process itself */
	const struct mx_config_kv_events *kv_events; /* how its events are published */
	bool tells;                                  /* changes of its prefix cache are told at all */
	const struct mx_config_cluster *cluster_config; /* NULL: one host computes it */
	struct mx_cluster *cluster;                     /* of several hosts; not needed for a plan */
	size_t index;            /* its number, from which its events' ports follow */
	struct mx_served *model; /* what is filled by loading; not needed for a plan */

	/* In the order in which it is built. */
	struct mx_plan *plan;
	struct mx_checkpoint *checkpoint;
	struct mx_tokenizer *tokenizer;
	struct mx_plan *draft_plan;             /* of the draft model; NULL = there is none */
	struct mx_checkpoint *draft_checkpoint; /* likewise */
	struct mx_chat_template *chat_template;
	const struct mx_tool_format *calls;          /* of its answers, NULL = unknown or none */
	const struct mx_reasoning_format *reasoning; /* the same */
	struct mx_engine *engine;
	struct mx_kv_publisher *publisher;
	struct mx_sched *sched;
	int32_t fallback_eos;
	struct mx_buf map; /* of the model, as JSON */
	/* The paths that were opened, without symbolic links; draft_folder is NULL without a draft
	 * model.
	 */
	char *folder, *draft_folder;
};

/* Opens the checkpoint, and computes the memory of the model; loads no weights. */
mx_status mx_hosted_plan(struct mx_hosted *h, const struct mx_registry *mixers,
                         struct mx_memory_plan *out, struct mx_err *err);
/* False if a path of the settings leads to another folder than the one that was opened. */
bool mx_hosted_is_at(const struct mx_hosted *h, const struct mx_config_model *settings);
/* Loads the chat template, and chooses what tells tool calls and reasoning. On failure `why` says
 * why a chat is not possible. */
mx_status mx_hosted_template(struct mx_hosted *h, char *why, size_t cap);
/* Loads the model, starts its scheduler and publishes it as ready. */
mx_status mx_hosted_load(struct mx_hosted *h, const struct mx_registry *mixers, struct mx_err *err);
/* Of a worker: joins the other hosts and loads its part of the model, which is its engine. */
mx_status mx_hosted_load_part(struct mx_hosted *h, const struct mx_registry *mixers,
                              struct mx_err *err);
/* Publishes no more events of its prefix cache. */
void mx_hosted_unpublish(struct mx_hosted *h);
/* Stops the scheduler, whose unfinished requests end with an error, and frees what was loaded. */
void mx_hosted_close(struct mx_hosted *h);

#endif
