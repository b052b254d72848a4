// One rank's communicator of the stand-in for NCCL, under the name in NCCL's header. Only non-blocking ones:
// what takes time is in progress, and goes on when the program asks for its state.
//
// Source of the rules: NCCL user guide, "Communicator creation and management functions", "Fault tolerance"
// and "Group calls".
//
// Thread-safe.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tests/stand_ins/cuda/stream_work.h"
#include "tests/stand_ins/nccl/faults.h"
#include "tests/stand_ins/nccl/group.h"

namespace tensorcast::stand_ins {

// The faults of this process; null: none.
NcclFaults* ProcessNcclFaults();

// The work of a group call. As in NCCL, it reaches the streams only after the call has returned, when one of
// its communicators is asked for its state. A caller that does not ask waits for an empty stream.
class Launch {
 public:
  void Add(std::function<void()> enqueue);
  // False: it was already started.
  bool Start();

 private:
  absl::Mutex mutex_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> enqueues_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::stand_ins

struct ncclComm : std::enable_shared_from_this<ncclComm> {
  using Collective = tensorcast::stand_ins::Collective;
  using GroupId = tensorcast::stand_ins::GroupId;
  using Launch = tensorcast::stand_ins::Launch;

  // On the thread's current device.
  ncclComm(const GroupId& id, int world, int rank);

  void StartJoining();
  // Violations: an earlier call is in progress, as far as the program knows, or has failed.
  void CheckReady(std::string_view call);
  // Enqueues the work in stream order once the launch starts.
  void Enqueue(Launch& launch, void* buffer, const Collective& collective, uint64_t bytes,
               cudaStream_t stream);
  void Launched(std::shared_ptr<Launch> launch);
  void Finalize();
  // The state that the program is told; with ncclSuccess it may go on.
  ncclResult_t State();

  void Abort();
  void Destroy();

 private:
  void Join();
  cudaError_t RunWork(const Collective& collective, uint64_t bytes,
                      const tensorcast::stand_ins::PieceCopier& copy);
  cudaError_t Broadcast(const Collective& collective, uint64_t bytes,
                        const tensorcast::stand_ins::PieceCopier& copy);
  void StrikeFaults();
  // The error stays: the program can then only abort.
  void Fail(ncclResult_t error);
  void HangUntilAborted();
  void Leave();

  const GroupId id_;
  const int world_;
  const int rank_;
  int device_ = -1;
  tensorcast::stand_ins::Member::Gpu gpu_;
  std::atomic<bool> aborted_{false};
  std::thread joiner_;
  std::unique_ptr<tensorcast::stand_ins::Member> member_;  // used by the joiner, then by the running work
  absl::Mutex mutex_;
  ncclResult_t error_ ABSL_GUARDED_BY(mutex_) = ncclSuccess;
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;  // the program was told that nothing is in progress
  bool finalized_ ABSL_GUARDED_BY(mutex_) = false;
  int unfinished_ ABSL_GUARDED_BY(mutex_) = 0;  // work on streams
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Launch> launch_ ABSL_GUARDED_BY(mutex_);
};
