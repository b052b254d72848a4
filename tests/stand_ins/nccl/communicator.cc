#include "tests/stand_ins/nccl/communicator.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/stand_ins/violation.h"

namespace tensorcast::stand_ins {
namespace {

[[noreturn]] void Wrong(std::string_view what) { Violation("nccl", what); }

// Makes the device current while it lives, as NCCL does in its own calls.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    cudaGetDevice(&previous_);
    cudaSetDevice(device);
  }
  ~OnDevice() { cudaSetDevice(previous_); }

 private:
  int previous_ = 0;
};

}  // namespace

NcclFaults* ProcessNcclFaults() {
  // Never destroyed: streams may outlive main.
  static const auto* const faults = [] {
    const char* const path = std::getenv(kNcclFaultsVariable);
    if (path == nullptr) return new std::shared_ptr<NcclFaults>();
    auto opened = OpenNcclFaults(path);
    if (!opened.ok()) Wrong(opened.status().ToString());
    return new std::shared_ptr<NcclFaults>(*std::move(opened));
  }();
  return faults->get();
}

void Launch::Add(std::function<void()> enqueue) {
  absl::MutexLock lock(&mutex_);
  enqueues_.push_back(std::move(enqueue));
}

bool Launch::Start() {
  absl::MutexLock lock(&mutex_);
  if (std::exchange(started_, true)) return false;
  // Under the lock: another communicator of the same group call waits until all work is on the streams.
  for (const std::function<void()>& enqueue : std::exchange(enqueues_, {})) enqueue();
  return true;
}

}  // namespace tensorcast::stand_ins

using namespace tensorcast::stand_ins;  // NOLINT(google-build-using-namespace): the struct's name is NCCL's

// The states of a communicator, as State tells them to the program:
//   joining     in progress until the joiner's thread has met all ranks
//   ready       calls are allowed
//   launched    after a group call with broadcasts: the first State starts the launch and is in progress, the
//               next one is a success, while the streams may still run the broadcasts
//   finalizing  in progress until no work is left on a stream
//   failed      every State has the error, and the program can only abort
//
// Join runs on the joiner's thread, RunWork on the thread of a stream, and all else on the program's threads.
// No lock is held while a thread waits for other ranks, so Abort gets through: it sets aborted_, which every
// such wait looks at.
ncclComm::ncclComm(const GroupId& id, int world, int rank) : id_(id), world_(world), rank_(rank) {
  cudaDeviceProp properties;
  if (cudaGetDevice(&device_) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, device_) != cudaSuccess) {
    Wrong("a rank has no GPU");
  }
  static_assert(sizeof(properties.uuid.bytes) == sizeof(gpu_));
  std::memcpy(gpu_.data(), properties.uuid.bytes, gpu_.size());
}

void ncclComm::StartJoining() {
  joiner_ = std::thread([this] { Join(); });
}

void ncclComm::Join() {
  if (NcclFaults* const faults = ProcessNcclFaults();
      faults != nullptr && NcclFaults::Take(faults->hang_join, rank_)) {
    return HangUntilAborted();
  }
  auto member = Member::Join(id_, world_, rank_, gpu_);
  if (!member.ok()) return Fail(absl::IsNotFound(member.status()) ? ncclSystemError : ncclInvalidUsage);
  // Not under the lock: streams use the member only after State has said that the rank has joined.
  member_ = *std::move(member);
  switch (member_->AwaitAll([this] { return aborted_.load(); })) {
    case Member::Wait::kStopped:
      return;
    case Member::Wait::kPeerGone:
      return Fail(ncclRemoteError);
    case Member::Wait::kDone:
      break;
  }
  absl::MutexLock lock(&mutex_);
  joined_ = true;
}

void ncclComm::CheckReady(std::string_view call) {
  absl::MutexLock lock(&mutex_);
  if (!ready_) {
    Wrong(absl::StrCat(call, " of rank ", rank_,
                       " while a call before it is in progress: ask for the communicator's state first"));
  }
  if (error_ != ncclSuccess) {
    Wrong(absl::StrCat(call, " of rank ", rank_, " after an error: it can only be aborted"));
  }
  if (finalized_) Wrong(absl::StrCat(call, " of rank ", rank_, " after ncclCommFinalize"));
}

void ncclComm::Enqueue(Launch& launch, void* buffer, const Collective& collective, uint64_t bytes,
                       cudaStream_t stream) {
  launch.Add([self = shared_from_this(), buffer, collective, bytes, stream] {
    {
      absl::MutexLock lock(&self->mutex_);
      ++self->unfinished_;
    }
    const OnDevice device(self->device_);
    const cudaError_t error =
        tensorcast_stand_in_enqueue(buffer, bytes, /*write=*/collective.root != self->rank_, stream,
                                    [self, collective, bytes](const PieceCopier& copy) {
                                      return self->RunWork(collective, bytes, copy);
                                    });
    if (error != cudaSuccess) self->Fail(ncclUnhandledCudaError);
  });
}

void ncclComm::Launched(std::shared_ptr<Launch> launch) {
  absl::MutexLock lock(&mutex_);
  ready_ = false;
  launch_ = std::move(launch);
}

void ncclComm::Finalize() {
  absl::MutexLock lock(&mutex_);
  ready_ = false;
  finalized_ = true;
}

ncclResult_t ncclComm::State() {
  std::shared_ptr<Launch> launch;
  {
    absl::MutexLock lock(&mutex_);
    if (error_ != ncclSuccess) return error_;
    if (!joined_) return ncclInProgress;
    // Asking for the state is what makes the launch go on (Launch).
    launch = std::exchange(launch_, nullptr);
  }
  if (launch != nullptr && launch->Start()) return ncclInProgress;
  absl::MutexLock lock(&mutex_);
  if (finalized_ && unfinished_ > 0) return ncclInProgress;
  ready_ = true;
  return ncclSuccess;
}

void ncclComm::Abort() {
  aborted_ = true;
  Leave();
}

void ncclComm::Destroy() {
  {
    absl::MutexLock lock(&mutex_);
    if (!finalized_ || !ready_) {
      Wrong(absl::StrCat("rank ", rank_, " is destroyed before ncclCommFinalize is done"));
    }
  }
  Leave();
}

// Waits for the thread that joins and for work on a stream: both use the member, and both see aborted_.
void ncclComm::Leave() {
  if (joiner_.joinable()) joiner_.join();
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !running_; };
  mutex_.Await(absl::Condition(&idle));
  launch_.reset();  // which holds this
  member_.reset();  // the others see that this rank is gone
}

cudaError_t ncclComm::RunWork(const Collective& collective, uint64_t bytes, const PieceCopier& copy) {
  {
    absl::MutexLock lock(&mutex_);
    // Leave waits only for work that runs. What begins later finds aborted_ set here, and uses no member.
    if (aborted_.load()) return cudaSuccess;
    if (std::exchange(running_, true)) Wrong(absl::StrCat("rank ", rank_, " uses two streams at once"));
  }
  const cudaError_t error = Broadcast(collective, bytes, copy);
  absl::MutexLock lock(&mutex_);
  running_ = false;
  --unfinished_;
  return error;
}

cudaError_t ncclComm::Broadcast(const Collective& collective, uint64_t bytes, const PieceCopier& copy) {
  const auto stop = [this] { return aborted_.load(); };
  const Member::Wait begun = member_->Begin(collective, stop);
  if (begun == Member::Wait::kStopped) return cudaSuccess;
  if (begun == Member::Wait::kPeerGone) {
    Fail(ncclRemoteError);
    HangUntilAborted();
    return cudaSuccess;
  }
  cudaError_t error = cudaSuccess;
  bool struck = false;
  for (uint64_t offset = 0; offset < bytes; offset += Member::kPieceBytes) {
    const uint64_t piece = std::min(Member::kPieceBytes, bytes - offset);
    const auto move = [&](std::byte* at) { return (error = copy(offset, at, piece)) == cudaSuccess; };
    const Member::Moved moved =
        collective.root == rank_ ? member_->Give(stop, move) : member_->Take(stop, move);
    switch (moved) {
      case Member::Moved::kDone:
        break;
      case Member::Moved::kStopped:
        return cudaSuccess;
      case Member::Moved::kFailed:
        Fail(ncclUnhandledCudaError);
        return error;
      case Member::Moved::kPeerGone:
        // As a kernel: it waits for bytes until a thread aborts it.
        Fail(ncclRemoteError);
        HangUntilAborted();
        return cudaSuccess;
    }
    // Faults strike in the middle: some bytes are there, and others are not.
    if (!struck && 2 * (offset + piece) >= bytes) {
      struck = true;
      StrikeFaults();
    }
  }
  return cudaSuccess;
}

void ncclComm::StrikeFaults() {
  NcclFaults* const faults = ProcessNcclFaults();
  if (faults == nullptr) return;
  if (NcclFaults::Take(faults->die, rank_)) kill(getpid(), SIGKILL);
  if (NcclFaults::Take(faults->late_error, rank_)) {
    Fail(ncclSystemError);
    HangUntilAborted();
  }
  if (NcclFaults::Take(faults->hang, rank_)) HangUntilAborted();
}

void ncclComm::Fail(ncclResult_t error) {
  absl::MutexLock lock(&mutex_);
  if (error_ == ncclSuccess) error_ = error;
}

// As a kernel of NCCL's does when a peer is gone. The bit tells a test that it has come so far.
void ncclComm::HangUntilAborted() {
  NcclFaults* const faults = ProcessNcclFaults();
  const uint64_t bit = uint64_t{1} << rank_;
  if (faults != nullptr) faults->hanging |= bit;
  while (!aborted_.load()) absl::SleepFor(absl::Microseconds(200));
  if (faults != nullptr) faults->hanging &= ~bit;
}
