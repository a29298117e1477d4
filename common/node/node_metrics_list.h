/* node_metrics_list.h - every family a node serves: one row each of docs/metrics.md, which a test compares with a scrape.
 *
 * Not: values (node_metrics.c). Owner: nobody, it is constant. Thread: any.
 */
#ifndef TD_NODE_NODE_METRICS_LIST_H
#define TD_NODE_NODE_METRICS_LIST_H

#include "common/base/metrics.h"

enum nd_family {
    F_KV_BLOCKS,
    F_KV_USAGE,
    F_QUEUED_TOKENS,
    F_INFLIGHT,
    F_UPTIME,
    F_PREFILL_QUEUE,
    F_DECODE_QUEUE,
    F_CANCELLATIONS,
    F_REQUEST_BYTES,
    F_RESPONSE_BYTES,
    F_BATCH_TOKENS,
    F_STEP_SECONDS,
    F_TRANSFER_SECONDS,
    F_TRANSFER_EXPOSED,
    F_TRANSFER_BYTES,
    F_TRANSFER_RATE,
    F_TRANSFER_FAILURES,
    F_TRANSFER_TRANSPORT,
    F_REGISTRATIONS,
    F_XFER_DROPPED,
    F_XFER_REFUSED,
    F_XFER_STALE,
    F_STALE,
    F_REFUSED,
    F_FINISHED,
    F_SEND_FAILURES,
    F_ROUTERS,
    F_MODEL_LOAD,
    F_PREFILL_PREALLOC,
    F_PREFILL_INFLIGHT,
    F_PREFILL_HELD,
    F_DECODE_PREALLOC,
    F_DECODE_TRANSFER,
    F_PENDING_RATIO,
    F_TRANSFER_BOOTSTRAP,
    F_TRANSFER_ALLOC,
    F_NOTIFY_FAILURES,
    F_EXPIRED,
    F_STALLS,
    F_GRPC_REQUESTS,
    F_SPANS,
    V_RUNNING, /* from here on the names of vLLM, with the label engine */
    V_WAITING,
    V_KV_USAGE,
    V_CACHE_INFO,
    V_LORA_INFO,
    V_PROMPT,
    V_GENERATION,
    V_SUCCESS,
    V_TTFT,
    V_ITL,
    V_QUEUE,
    V_PREFILL,
    V_DECODE,
    V_ITERATION,
    V_WAITING_REASON,
    V_SOURCE,
    V_EXTERNAL_QUERIES,
    V_EXTERNAL_HITS,
    V_PREEMPTIONS,
    V_TPOT,
    V_E2E,
    V_INFERENCE,
    V_REQ_PROMPT,
    V_REQ_GENERATION,
    V_REQ_MAX_TOKENS,
    V_REQ_KV_COMPUTED,
    V_XFER_TIME,
    V_XFER_BYTES,
    V_XFER_DESCRIPTORS,
    V_XFER_FAILED,
    V_XFER_NOTIFY_FAILED,
    V_XFER_EXPIRED,
    ND_FAMILIES
};

extern const struct td_metric_desc nd_metric_list[ND_FAMILIES];

#endif
