// The difference of a new version from an earlier one, as a put makes it: the base's replica and the
// target's, both in this node's host memory, are compared chunk by chunk while the target is copied.
//
//   Plan (before the tensors are copied) ─► the target's ingest, which encodes ─► Encode ─► an ingest of the
//   difference
//
// The base is leased only while chunks are compared, never while the target waits for room: where the base
// gave way to the target there is no difference. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/engine/engine.h"
#include "core/ingest/ingest_request.h"
#include "daemon/global_store_link/known_keys.h"
#include "daemon/service/difference_encoding.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

// What a put is to publish beside its artifact.
struct DifferencePlan {
  std::shared_ptr<const Manifest> base;          // null: no difference
  std::shared_ptr<DifferenceEncoding> encoding;  // of the target's ingest; null: none, or it has ended
  bool required = false;
  std::string no_difference;  // why there is none where one was asked for, for people

  // No difference after all, counted as `outcome` (tc_differences_total). FAILED_PRECONDITION where one is
  // required, else OK.
  absl::Status GiveUp(std::string_view outcome, std::string why);
};

class DifferenceMaker {
 public:
  struct Options {
    StoreEngine* engine = nullptr;  // all must outlive it
    KnownKeys* known_keys = nullptr;
    std::string default_base = "none";  // of puts that name none: auto or none
  };

  explicit DifferenceMaker(Options options) : options_(std::move(options)) {}

  // From what is known before the tensors are read: which base the put means, and whether it is here with the
  // same tensors. `key`: the one that the put binds; empty: none. Where it is, the sources of `target` encode
  // what they give. FAILED_PRECONDITION where a difference is required and cannot be made.
  absl::StatusOr<DifferencePlan> Plan(const RequestContext& context, const v1::DifferenceRequest& request,
                                      const std::string& key, IngestRequest& target) const;

  // The ingest that makes the difference's replica, of what the target's ingest encoded. Where none can be
  // made the plan has no base from then on, and what is returned is empty; errors as above.
  absl::StatusOr<std::unique_ptr<IngestRequest>> Encode(const RequestContext& context, DifferencePlan& plan,
                                                        const ReplicaLease& target) const;

 private:
  const Options options_;
};

}  // namespace tensorcast::daemon
