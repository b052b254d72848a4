// A Communicator over NCCL. It uses NCCL's communicators in non-blocking mode: a call that takes long returns
// ncclInProgress, and this class polls until the call is done, has failed, or its context has ended. Each
// rank has its own stream.
//
// Source of the rules: NCCL user guide, "Creating a communicator with options", "Error handling and
// communicator abort", "Fault tolerance", "Group calls".
#pragma once

#include <nccl.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "collective/communicator.h"
#include "collective/nccl/functions.h"

namespace tensorcast {

class NcclCommunicator final : public Communicator {
 public:
  // As CollectiveLibrary::Join. `nccl` and `devices` must outlive the communicator.
  static absl::StatusOr<std::unique_ptr<Communicator>> Join(const NcclFunctions& nccl, DeviceRuntime& devices,
                                                            const RequestContext& context,
                                                            const CommunicatorId& id, int world_size,
                                                            absl::Span<const RankDevice> ranks);
  ~NcclCommunicator() override;

  absl::Status Broadcast(const RequestContext& context, int root, absl::Span<const DevicePtr> buffers,
                         uint64_t bytes) override;
  absl::Status Await(const RequestContext& context) override;
  void Abort() override;

 private:
  NcclCommunicator(const NcclFunctions& nccl, int world_size, absl::Span<const RankDevice> ranks);

  absl::Status Start(DeviceRuntime& devices, const CommunicatorId& id);
  absl::Status CheckBroadcast(int root, absl::Span<const DevicePtr> buffers, uint64_t bytes);
  absl::Status CheckNotEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Calls `call` for each rank, all in one NCCL group. Without a group, each call would wait for the calls of
  // the other ranks.
  absl::Status ForEachRank(std::string_view operation, absl::FunctionRef<absl::Status(size_t i)> call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // AwaitCalls waits until no NCCL call is in progress. AwaitWork then also waits until the streams are idle.
  absl::Status AwaitCalls(const RequestContext& context, std::string_view operation)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AwaitWork(const RequestContext& context) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Poll(const RequestContext& context, std::string_view operation,
                    absl::FunctionRef<absl::StatusOr<bool>()> done) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<bool> CallsAreDone(std::string_view operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> StreamsAreIdle();

  // For the owner's thread. If `error` is not OK, aborts the communicator and waits until NCCL no longer
  // accesses the buffers. Returns `error`.
  absl::Status EndIf(absl::Status error);
  void AbortFor(absl::Status reason);
  // Leaves the communicator without an error at the other ranks. Returns false if that failed; the
  // caller must then abort the communicator.
  bool Finalize();

  const NcclFunctions& nccl_;
  const int world_size_;
  const std::vector<RankDevice> ranks_;
  std::vector<std::unique_ptr<Stream>> streams_;  // used only by the owner's thread; by the index of ranks_
  absl::Mutex mutex_;  // Abort may run at any time, and NCCL's handles are invalid after it
  std::vector<ncclComm_t> comms_ ABSL_GUARDED_BY(mutex_);  // by the index of ranks_; empty when ended
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);             // why it was aborted
};

}  // namespace tensorcast
