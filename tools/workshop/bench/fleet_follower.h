// The work of a simulated node that follows a key: it makes the calls of a real daemon for each new version,
// with the same fields, and waits for as long as the bytes would take. It holds none.
//
//   task ─► DescribeArtifact ─► RequestReplicaTransport ─(transfer)─► CompleteReplicaTransport
//                                 ─(rebuild)─► UpdateReplicas; the task's end goes with the next heartbeat
//
// Thread-compatible: one call is under way at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "proto/global_store.grpc.pb.h"

namespace tensorcast::bench {

class FleetFollower {
 public:
  struct Options {
    absl::Duration transfer = absl::Milliseconds(50);  // of a difference, or of a version that comes whole
    absl::Duration rebuild = absl::Milliseconds(200);  // of a version from its difference
  };
  // Called on gRPC's threads.
  struct Observer {
    std::function<void(std::string_view method)> on_call;  // each call that begins
    std::function<void(const std::string& artifact_id)>
        on_ready;  // the store knows that the version is ready
  };
  using Stub = v1::GlobalStore::Stub;
  using Done = std::function<void(const absl::Status&)>;

  // `observer` must outlive the follower.
  FleetFollower(const Options& options, std::string node_id, const Observer* observer);

  // Call it when the store took an inventory with this one ready replica.
  void SetInventory(const std::string& artifact_id, const std::string& replica_id);
  // Adds to a heartbeat what a daemon reports of its replicas, grants and tasks.
  void Report(v1::HeartbeatRequest* heartbeat);
  void Answered(const v1::HeartbeatResponse& response);

  // When Step has something to do; the infinite future: nothing.
  SteadyTime due() const { return due_; }
  // Makes the next call. `done` is called when it has ended; after an error the same call comes again.
  void Step(Stub* stub, Done done);

 private:
  enum class Phase : uint8_t { kIdle, kDescribe, kRequest, kComplete, kReport };
  struct Part {  // a difference, or the version itself where there is none
    std::string artifact_id;
    std::string replica_id;
    uint64_t bytes = 0;
    bool is_difference = false;
  };

  void Go(Phase phase, absl::Duration in = absl::ZeroDuration());
  void Begin(const v1::ReplicationTask& task);
  std::string NewReplicaId();
  v1::NodeIdentity Identity() const;
  v1::Replica Ready(const Part& part) const;
  void Describe(Stub* stub, Done done);
  void Request(Stub* stub, Done done);
  void Complete(Stub* stub, Done done);
  void ReportReplicas(Stub* stub, Done done);
  void OnDescribed(std::vector<Part> parts);
  void OnReported();

  const Options options_;
  const std::string node_id_;
  const Observer& observer_;
  Phase phase_ = Phase::kIdle;
  SteadyTime due_ = SteadyTime::InfiniteFuture();
  std::string task_id_;  // empty: none
  bool ended_ = false;   // the task's end is to be reported
  bool told_ = false;    // it is in the last heartbeat
  Part target_;
  std::vector<Part> parts_;          // to bring, in this order
  size_t part_ = 0;                  // under way
  std::vector<std::string> grants_;  // of that part
  std::vector<std::string> images_;  // ids of the versions that are here, the newest last
  uint64_t sequence_ = 0;
  uint64_t digest_ = 0;  // of the ready replicas
  uint64_t replica_ids_ = 0;
};

}  // namespace tensorcast::bench
