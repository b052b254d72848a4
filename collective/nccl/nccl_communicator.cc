#include "collective/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// The pause between two polls of NCCL: it begins short and doubles.
constexpr absl::Duration kShortestPause = absl::Microseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(1);
// For ranks of the same host to leave the group as well.
constexpr absl::Duration kLongestFinalize = absl::Seconds(5);

absl::Status CheckRanks(int world_size, absl::Span<const RankDevice> ranks) {
  if (ranks.empty()) {
    return absl::InvalidArgumentError(
        "join a communicator: no rank of this process was given; give one rank or more");
  }
  std::set<int> taken;
  std::set<int> devices;
  for (const RankDevice& rank : ranks) {
    if (rank.rank < 0 || rank.rank >= world_size) {
      return absl::InvalidArgumentError(absl::StrCat("join a communicator as rank ", rank.rank,
                                                     ": the communicator has ", world_size,
                                                     " ranks; give a rank from 0 to ", world_size - 1));
    }
    const bool is_new = taken.insert(rank.rank).second;
    if (!is_new || !devices.insert(rank.device).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("join a communicator as rank ", rank.rank, " on device ", rank.device,
                       is_new ? ": another rank is on this device; give each rank its own device"
                              : ": this rank was given twice; give each rank its own number"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> NcclCommunicator::Join(const NcclFunctions& nccl,
                                                                     DeviceRuntime& devices,
                                                                     const RequestContext& context,
                                                                     const CommunicatorId& id, int world_size,
                                                                     absl::Span<const RankDevice> ranks) {
  TC_RETURN_IF_ERROR(CheckRanks(world_size, ranks));
  if (id.bytes.size() != sizeof(ncclUniqueId)) {
    return absl::InvalidArgumentError(absl::StrCat("join a communicator: the id has ", id.bytes.size(),
                                                   " bytes, not ", sizeof(ncclUniqueId),
                                                   "; pass an id that MakeId made"));
  }
  std::unique_ptr<NcclCommunicator> communicator(new NcclCommunicator(nccl, world_size, ranks));
  // Start only begins the calls. The wait for the other ranks gives up with the context, and then aborts.
  TC_RETURN_IF_ERROR(communicator->Start(devices, id));
  TC_RETURN_IF_ERROR(communicator->EndIf(communicator->AwaitCalls(context, "join a communicator")));
  return communicator;
}

NcclCommunicator::NcclCommunicator(const NcclFunctions& nccl, int world_size,
                                   absl::Span<const RankDevice> ranks)
    : nccl_(nccl),
      world_size_(world_size),
      ranks_(ranks.begin(), ranks.end()),
      // Null until NCCL has made a rank's: AbortFor passes over those.
      comms_(ranks.size(), nullptr) {}

NcclCommunicator::~NcclCommunicator() {
  if (!Finalize()) AbortFor(absl::CancelledError("the owner destroyed the communicator"));
}

absl::Status NcclCommunicator::Start(DeviceRuntime& devices, const CommunicatorId& id) {
  for (const RankDevice& rank : ranks_) {
    TC_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, devices.CreateStream(rank.device));
    streams_.push_back(std::move(stream));
  }
  ncclUniqueId unique;
  std::memcpy(unique.internal, id.bytes.data(), sizeof(unique.internal));
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    status = ForEachRank("join a communicator", [&](size_t i) {
      mutex_.AssertHeld();
      // NCCL takes the device that is current as the rank's.
      return streams_[i]->Lend({}, 0, [&](void*) {
        mutex_.AssertHeld();
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        // Each call returns at once, and its end is polled for: a rank that never comes cannot hold this
        // thread.
        config.blocking = 0;
        return NcclStatus(
            nccl_, nccl_.comm_init_rank_config(&comms_[i], world_size_, unique, ranks_[i].rank, &config),
            "join a communicator", nullptr);
      });
    });
  }
  return EndIf(status);
}

absl::Status NcclCommunicator::Broadcast(const RequestContext& context, int root,
                                         absl::Span<const DevicePtr> buffers, uint64_t bytes) {
  TC_RETURN_IF_ERROR(CheckBroadcast(root, buffers, bytes));
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    TC_RETURN_IF_ERROR(CheckNotEnded());
    // All ranks pass the same number, so all of them leave this out.
    if (bytes == 0) return absl::OkStatus();
    status = ForEachRank("broadcast", [&](size_t i) {
      mutex_.AssertHeld();
      return streams_[i]->Lend(buffers[i], bytes, [&](void* stream) {
        mutex_.AssertHeld();
        // NOLINTNEXTLINE(performance-no-int-to-ptr): neither NCCL nor we read through it on the host
        void* const buffer = reinterpret_cast<void*>(buffers[i].address);
        return NcclStatus(nccl_,
                          nccl_.broadcast(buffer, buffer, bytes, ncclUint8, root, comms_[i],
                                          static_cast<cudaStream_t>(stream)),
                          "broadcast", comms_[i]);
      });
    });
  }
  // The calls are enqueued when this returns; their work on the streams is for Await.
  if (status.ok()) status = AwaitCalls(context, "broadcast");
  return EndIf(status);
}

absl::Status NcclCommunicator::Await(const RequestContext& context) {
  {
    absl::MutexLock lock(&mutex_);
    TC_RETURN_IF_ERROR(CheckNotEnded());
  }
  return EndIf(AwaitWork(context));
}

void NcclCommunicator::Abort() { AbortFor(absl::CancelledError("the owner aborted the communicator")); }

// Refuses what one rank alone would refuse later: then the other ranks of this process would hang in a group
// that is only half begun.
absl::Status NcclCommunicator::CheckBroadcast(int root, absl::Span<const DevicePtr> buffers, uint64_t bytes) {
  if (root < 0 || root >= world_size_) {
    return absl::InvalidArgumentError(absl::StrCat("broadcast from rank ", root, ": the communicator has ",
                                                   world_size_, " ranks; name one of these ranks"));
  }
  if (buffers.size() != ranks_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("broadcast ", buffers.size(),
                                                   " buffers: this process has ", ranks_.size(),
                                                   " ranks; give each rank one buffer"));
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].device != ranks_[i].device) {
      return absl::InvalidArgumentError(
          absl::StrCat("broadcast a buffer on device ", buffers[i].device, ": rank ", ranks_[i].rank,
                       " runs on device ", ranks_[i].device, "; pass a buffer on the device of the rank"));
    }
    // All are looked at before the first is used: half a group cannot be taken back.
    TC_RETURN_IF_ERROR(streams_[i]->Lend(buffers[i], bytes, [](void*) { return absl::OkStatus(); }));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::CheckNotEnded() {
  if (ended_.ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("use a communicator: the communicator has ended (",
                                                    ended_.message(), "); join another communicator"));
}

absl::Status NcclCommunicator::ForEachRank(std::string_view operation,
                                           absl::FunctionRef<absl::Status(size_t i)> call) {
  TC_RETURN_IF_ERROR(NcclStatus(nccl_, nccl_.group_start(), operation, nullptr));
  absl::Status status;
  for (size_t i = 0; i < ranks_.size() && status.ok(); ++i) status = call(i);
  // Whatever became of the calls: the group is the thread's, and would stay open.
  status.Update(NcclStatus(nccl_, nccl_.group_end(), operation, nullptr));
  return status;
}

absl::Status NcclCommunicator::AwaitCalls(const RequestContext& context, std::string_view operation) {
  return Poll(context, operation, [&] {
    mutex_.AssertHeld();
    return CallsAreDone(operation);
  });
}

absl::Status NcclCommunicator::AwaitWork(const RequestContext& context) {
  return Poll(context, "broadcast", [this]() -> absl::StatusOr<bool> {
    mutex_.AssertHeld();
    TC_ASSIGN_OR_RETURN(const bool done, CallsAreDone("broadcast"));
    if (!done) return false;
    return StreamsAreIdle();
  });
}

// The lock is released between two looks, so Abort from another thread takes effect at once.
absl::Status NcclCommunicator::Poll(const RequestContext& context, std::string_view operation,
                                    absl::FunctionRef<absl::StatusOr<bool>()> done) {
  // NCCL has nothing to wait on, so the calls are polled. An Abort ends the pause between two polls.
  const auto ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !ended_.ok(); };
  absl::Duration pause = kShortestPause;
  absl::MutexLock lock(&mutex_);
  while (ended_.ok()) {
    TC_ASSIGN_OR_RETURN(const bool is_done, done());
    if (is_done) return absl::OkStatus();
    TC_RETURN_IF_ERROR(context.Check(operation));
    mutex_.AwaitWithTimeout(absl::Condition(&ended), pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return absl::CancelledError(
      absl::StrCat(operation, ": the communicator was aborted; join another communicator"));
}

absl::StatusOr<bool> NcclCommunicator::CallsAreDone(std::string_view operation) {
  bool done = true;
  for (const ncclComm_t comm : comms_) {
    ncclResult_t state = ncclSuccess;
    TC_RETURN_IF_ERROR(NcclStatus(nccl_, nccl_.comm_get_async_error(comm, &state), operation, comm));
    // The status above is of the question, this one of the call that was asked about.
    TC_RETURN_IF_ERROR(NcclStatus(nccl_, state, operation, comm));
    done = done && state == ncclSuccess;
  }
  return done;
}

absl::StatusOr<bool> NcclCommunicator::StreamsAreIdle() {
  bool all = true;
  for (const std::unique_ptr<Stream>& stream : streams_) {
    TC_ASSIGN_OR_RETURN(const bool idle, stream->IsIdle());
    all = all && idle;
  }
  return all;
}

absl::Status NcclCommunicator::EndIf(absl::Status error) {
  if (error.ok()) return error;
  AbortFor(error);
  // Aborted kernels end, and only then is the memory the caller's again. What else went wrong on a stream
  // belongs to the same story.
  for (const std::unique_ptr<Stream>& stream : streams_) stream->Synchronize().IgnoreError();
  return error;
}

// The first call decides, and takes the communicators out of comms_, so that each is aborted once. They are
// aborted without the lock, since NCCL may take its time.
void NcclCommunicator::AbortFor(absl::Status reason) {
  std::vector<ncclComm_t> comms;
  {
    absl::MutexLock lock(&mutex_);
    if (!ended_.ok()) return;
    ended_ = std::move(reason);
    comms.swap(comms_);
  }
  for (const ncclComm_t comm : comms) {
    if (comm == nullptr) continue;
    const absl::Status status = NcclStatus(nccl_, nccl_.comm_abort(comm), "abort a communicator", nullptr);
    if (!status.ok()) LOG(WARNING) << status;
  }
}

// False: it did not leave in good order, and has to be aborted. That is so wherever work is still under
// way.
bool NcclCommunicator::Finalize() {
  {
    absl::MutexLock lock(&mutex_);
    if (!ended_.ok()) return true;
    if (!StreamsAreIdle().value_or(false)) return false;
    for (const ncclComm_t comm : comms_) {
      if (comm == nullptr ||
          !NcclStatus(nccl_, nccl_.comm_finalize(comm), "leave a communicator", comm).ok()) {
        return false;
      }
    }
  }
  // Ranks leave together, so this waits, without the lock, and gives up on a rank that does not come.
  const absl::Status left = AwaitCalls(RequestContext::Background(kLongestFinalize), "leave a communicator");
  if (!left.ok()) {
    LOG(WARNING) << left << "; the communicator is aborted";
    return false;
  }
  absl::MutexLock lock(&mutex_);
  // From here on an Abort finds nothing to do.
  ended_ = absl::CancelledError("the owner destroyed the communicator");
  for (const ncclComm_t comm : std::exchange(comms_, {})) {
    const absl::Status status =
        NcclStatus(nccl_, nccl_.comm_destroy(comm), "destroy a communicator", nullptr);
    if (!status.ok()) LOG(WARNING) << status;
  }
  return true;
}

}  // namespace tensorcast
