// Joins imports of the same objects in the same versions: one import reads, and the other imports take its
// artifact. A claim at the global store joins imports of several nodes (proto/imports.proto). If the global
// store does not answer, an import reads without a claim.
//
// Join(id) ──► a ReadingTurn: read, then Made(artifact); its destructor lets the next import read
//           └──► an artifact: another import made it
//
// Thread-safe; must outlive its turns.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/request_context.h"
#include "proto/imports.pb.h"

namespace tensorcast::daemon {

class ImportJoins {
 public:
  // One request to the global store; the function sets the node's identity.
  using Claim =
      std::function<absl::StatusOr<v1::ClaimImportResponse>(const RequestContext&, v1::ClaimImportRequest)>;
  explicit ImportJoins(Claim claim) : claim_(std::move(claim)) {}

  // The right to read the objects. The turn renews the claim until the turn is destroyed. The destructor
  // takes at most a second.
  class ReadingTurn {
   public:
    ReadingTurn(ImportJoins* joins, std::string import_id)
        : joins_(*joins), import_id_(std::move(import_id)) {}
    ~ReadingTurn();
    ReadingTurn(const ReadingTurn&) = delete;
    ReadingTurn& operator=(const ReadingTurn&) = delete;

    // The import succeeded: waiting imports take this artifact.
    void Made(const std::string& artifact_id) { artifact_id_ = artifact_id; }

   private:
    friend class ImportJoins;
    void KeepClaim(absl::Duration interval);

    ImportJoins& joins_;
    const std::string import_id_;
    std::string artifact_id_;
    bool claimed_ = false;
    absl::Notification ended_;
    Cancellation renewal_;        // cancels the renewal that is under way
    absl::Notification renewed_;  // after the last renewal
    std::thread renewing_;
  };

  struct Joined {
    std::unique_ptr<ReadingTurn> turn;  // null: the artifact exists
    std::string artifact_id;
  };
  // Waits while another import reads, and calls `on_wait` with the reason. CANCELLED or DEADLINE_EXCEEDED
  // when the context ends first.
  absl::StatusOr<Joined> Join(const RequestContext& context, const std::string& import_id,
                              const std::function<void(const std::string&)>& on_wait);

 private:
  struct Import {
    int imports = 0;       // the imports that read or wait
    bool reading = false;  // one of them reads, or asks for the claim
    std::string artifact_id;
  };

  void Leave(const std::string& import_id, const std::string& artifact_id);

  const Claim claim_;
  absl::Mutex mutex_;
  std::map<std::string, Import> imports_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
