// Makes the difference from an earlier version (the base) to a new version (the target) during a put.
// Compares base and target chunk by chunk while the target is copied. Both are in this node's host memory.
//
//   Plan (before the tensors are copied) ─► the target's ingest, which encodes ─► Encode ─► an ingest of the
//   difference
//
// The base may be evicted to make room for the target; then no difference is published. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/engine/engine.h"
#include "core/ingest/ingest_request.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/known_keys.h"
#include "daemon/service/difference_encoding.h"
#include "daemon/service/materialize.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

// What a put publishes beside its artifact.
struct DifferencePlan {
  std::shared_ptr<const Manifest> base;          // null: no difference
  std::shared_ptr<DifferenceEncoding> encoding;  // for the target's ingest; null: none, or that ingest ended
  bool required = false;
  std::string no_difference;  // for people: why a requested difference was not made

  // Drops the difference, and counts it as `outcome` (tc_differences_total). FAILED_PRECONDITION if the put
  // requires a difference, else OK.
  absl::Status GiveUp(std::string_view outcome, std::string why);
};

class DifferenceMaker {
 public:
  struct Options {
    StoreEngine* engine = nullptr;  // all must outlive this object
    KnownKeys* known_keys = nullptr;
    GlobalStoreClient* global_store = nullptr;
    const Materializer* materializer = nullptr;  // brings a base from elsewhere
    std::string node_id = {};
    std::string default_base = "none";  // auto or none; applies to puts that name no base
  };

  explicit DifferenceMaker(Options options) : options_(std::move(options)) {}

  // Call Plan before the tensors are read. Finds the requested base, checks its tensors, and brings the base
  // to host memory if that saves bytes. Wraps the sources of `target` with the encoding. `key`: the key that
  // the put binds; empty: none. FAILED_PRECONDITION if a difference is required and cannot be made.
  absl::StatusOr<DifferencePlan> Plan(const RequestContext& context, const v1::DifferenceRequest& request,
                                      const std::string& key, IngestRequest& target) const;

  // Returns the ingest that makes the difference's replica. If there can be no difference, clears the plan's
  // base and returns null. Errors as for Plan.
  absl::StatusOr<std::unique_ptr<IngestRequest>> Encode(const RequestContext& context, DifferencePlan& plan,
                                                        const ReplicaLease& target) const;

 private:
  // Brings the base to host memory, if a difference would save more bytes than the base costs. This is so if
  // at least two other nodes have the base in memory. For a base on this node's disk or GPU, one other node
  // is enough. For a required difference, brings the base in any case.
  absl::Status BringBase(const RequestContext& context, const std::string& base_id, bool required) const;

  const Options options_;
};

}  // namespace tensorcast::daemon
