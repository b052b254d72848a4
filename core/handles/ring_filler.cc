#include "core/handles/ring_filler.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/handles/client_channel.h"

namespace tensorcast {
namespace {

// The threads of a filler have one loop (Work): take a request, check it, fill its slot, answer. With no
// request they sleep on the word `posted`, which the daemon raises with each request, and which Stop and Fail
// raise to end the sleep. The daemon ends a put on its own: it shuts the connection down, asks for nothing
// more, and the put's caller calls Stop.
constexpr absl::Duration kConnectTimeout = absl::Seconds(10);

// Writing past the end of a file is a SIGBUS.
absl::Status CheckMemory(int fd, const RingShape& shape) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "stat", "the ring of the put");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || static_cast<uint64_t>(info.st_size) < shape.bytes()) {
    return absl::InternalError(absl::StrCat(
        "open the ring of a put: the daemon sent memory of ", info.st_size, " bytes with the seals ", seals,
        ", but the put needs at least ", shape.bytes(), " bytes that cannot shrink", kOneRelease));
  }
  return absl::OkStatus();
}

// Names the memories and their parts before STREAM. The daemon answers none of these frames: a refusal is
// what Exchange receives for STREAM.
absl::Status HandOver(ClientChannel& channel, std::span<const HandedMemory> handed, SteadyTime deadline) {
  for (const HandedMemory& memory : handed) {
    std::vector<int> fds;
    if (memory.memfd) fds.push_back(memory.memfd.get());
    TC_RETURN_IF_ERROR(channel.Send(
        HandOverFrame{.bytes = memory.bytes, .pool_id = memory.pool_id, .replica_id = memory.replica_id},
        std::move(fds), deadline));
    std::span<const HandedPart> left = memory.parts;
    while (!left.empty()) {
      const auto now = left.first(std::min(left.size(), kMaxPartsPerFrame));
      TC_RETURN_IF_ERROR(channel.Send(PartsFrame{{now.begin(), now.end()}}, {}, deadline));
      left = left.subspan(now.size());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RingFiller>> RingFiller::Open(const std::string& socket_path,
                                                             uint64_t image_bytes, SteadyTime deadline,
                                                             const Cancellation& cancellation,
                                                             std::span<const HandedMemory> handed) {
  // To connect takes a moment or fails. Only the wait for room may take until the deadline.
  TC_ASSIGN_OR_RETURN(
      std::unique_ptr<ClientChannel> channel,
      ClientChannel::Connect(socket_path, std::min(deadline, SteadyNow() + kConnectTimeout), cancellation));
  const ClientChannel::EndedBy ended(*channel, cancellation);
  // A daemon that refuses says why in its answer to STREAM.
  const absl::Status sent = HandOver(*channel, handed, deadline);
  if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
  absl::StatusOr<IncomingFrame> answer = channel->Exchange(StreamFrame{image_bytes}, {}, deadline);
  if (absl::IsDeadlineExceeded(answer.status())) {
    return absl::DeadlineExceededError(
        absl::StrCat("open the ring of a put at ", socket_path,
                     ": the daemon gave no ring before the deadline, most likely because other puts use all "
                     "rings; raise the timeout, or daemon.put_rings"));
  }
  TC_RETURN_IF_ERROR(answer.status());
  auto* frame = std::get_if<RingFrame>(&answer->frame);
  if (frame == nullptr || answer->fds.size() != 1) {
    return absl::InternalError(absl::StrCat("open the ring of a put: the daemon answered with ",
                                            FrameName(answer->frame), " and ", answer->fds.size(),
                                            " descriptors instead of RING and 1 descriptor", kOneRelease));
  }
  const RingShape shape = frame->shape;
  if (absl::Status right = shape.Check(); !right.ok()) return absl::InternalError(right.message());
  TC_RETURN_IF_ERROR(CheckMemory(answer->fds.front().get(), shape));
  TC_ASSIGN_OR_RETURN(ReservedRange mapping, ReservedRange::Reserve(shape.bytes(), "the ring of the put"));
  TC_RETURN_IF_ERROR(
      mapping.Map(0, answer->fds.front().get(), 0, shape.bytes(), ReservedRange::Access::kWrite));
  return std::unique_ptr<RingFiller>(
      new RingFiller(std::move(channel), std::move(frame->token), shape, image_bytes, std::move(mapping)));
}

RingFiller::RingFiller(std::unique_ptr<ClientChannel> channel, std::string token, RingShape shape,
                       uint64_t image_bytes, ReservedRange mapping)
    : channel_(std::move(channel)),
      token_(std::move(token)),
      shape_(shape),
      image_bytes_(image_bytes),
      mapping_(std::move(mapping)),
      taken_(shape.slots) {}

RingFiller::~RingFiller() { Stop().IgnoreError(); }

HostSpan RingFiller::slots() const {
  return {mapping_.base() + kRingHeaderBytes, shape_.bytes() - kRingHeaderBytes};
}

absl::Status RingFiller::Start(int threads, Fill fill, std::function<void()> on_failed) {
  fill_ = std::move(fill);
  on_failed_ = std::move(on_failed);
  try {
    for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back([this, i] { Work(i); });
  } catch (const std::system_error& error) {
    if (threads_.empty()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("start a thread that fills the ring of a put: ", error.what(),
                       "; raise the limit of threads (`ulimit -u`)"));
    }
    // With fewer threads it takes longer.
  }
  return absl::OkStatus();
}

absl::Status RingFiller::Stop() {
  stopping_.store(true);
  // A thread that has looked at the slots and not slept yet sees the new number, and does not sleep.
  header().posted.fetch_add(1);
  WakeSleepers(header().posted, std::numeric_limits<int>::max());
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  absl::MutexLock lock(&mutex_);
  return failure_;
}

// A slot has a new request where its number is not the one that was taken last. The lock makes sure that one
// thread takes it. The search begins behind the slot of the previous task, so that requests are served in
// about their order. The fields are copied here and never read again, since the daemon could change them
// after the check.
std::optional<RingFiller::Task> RingFiller::TakeTask() {
  absl::MutexLock lock(&mutex_);
  for (uint32_t i = 0; i < shape_.slots; ++i) {
    const uint32_t slot = (turn_ + i) % shape_.slots;
    const RingSlot& shared = header().slots[slot];
    const uint32_t asked = shared.asked.load(std::memory_order_acquire);
    if (asked == taken_[slot]) continue;
    taken_[slot] = asked;
    turn_ = slot + 1;
    return Task{.slot = slot,
                .sequence = asked,
                .image_offset = shared.image_offset.load(std::memory_order_relaxed),
                .bytes = shared.bytes.load(std::memory_order_relaxed)};
  }
  return std::nullopt;
}

// The daemon's numbers decide where this process writes, so they are checked.
absl::Status RingFiller::Check(const Task& task) const {
  const bool in_slot = task.bytes <= shape_.slot_bytes;
  const bool in_image = task.image_offset <= image_bytes_ && task.bytes <= image_bytes_ - task.image_offset;
  if (in_slot && in_image) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("fill the ring of a put: the daemon asked for ", task.bytes,
                                          " bytes at offset ", task.image_offset, ", but the image has ",
                                          image_bytes_, " bytes and a slot has ", shape_.slot_bytes, " bytes",
                                          kOneRelease));
}

void RingFiller::Work(int thread) {
  while (!stopping_.load()) {
    // Read before the slots: what is posted after them changes it, and then this thread does not sleep.
    const uint32_t posted = header().posted.load(std::memory_order_acquire);
    const std::optional<Task> task = TakeTask();
    if (!task.has_value()) {
      if (!stopping_.load()) SleepWhile(header().posted, posted, absl::InfiniteDuration());
      continue;
    }
    absl::Status filled = Check(*task);
    if (filled.ok()) {
      const uint64_t begin = uint64_t{task->slot} * shape_.slot_bytes;
      filled = fill_(thread, task->image_offset, slots().subspan(begin, task->bytes));
    }
    if (!filled.ok()) return Fail(filled);
    // Release: the daemon that sees the number sees the bytes.
    std::atomic<uint32_t>& done = header().slots[task->slot].done;
    done.store(task->sequence, std::memory_order_release);
    WakeSleepers(done, 1);
  }
}

void RingFiller::Fail(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    // The first failure stays: the others may follow from it.
    if (!failure_.ok()) return;
    failure_ = why;
  }
  stopping_.store(true);
  header().posted.fetch_add(1);
  WakeSleepers(header().posted, std::numeric_limits<int>::max());
  // With no lock held: the callback ends the call of the put, which may run code of the caller.
  if (on_failed_) on_failed_();
}

}  // namespace tensorcast
