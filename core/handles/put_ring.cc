#include "core/handles/put_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/posix/process_limits.h"
#include "base/posix/unix_socket.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// F_SEAL_SEAL, so that no process can add a seal: one against writing would end the stream.
constexpr int kRingSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// The max time between two checks of the context and the connection: NoteClosed and a cancellation wake no
// thread that sleeps on a slot.
constexpr absl::Duration kLookEvery = absl::Milliseconds(50);

}  // namespace

absl::StatusOr<std::shared_ptr<PutRing>> PutRing::Create(RingShape shape, absl::Duration stall_timeout,
                                                         RingRoom::Hold room, UniqueFd connection) {
  TC_RETURN_IF_ERROR(shape.Check());
  UniqueFd memory(memfd_create("tc-put-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return ErrnoStatus(errno, "create", "the ring of a put");
  // Both descriptors are taken for the peer, which must leave the reserve alone. Without the connection End
  // would end nothing, and the client could keep its room.
  const DescriptorUser user = DescriptorUserAt(connection.get());
  if (!connection || IsReserved(memory.get(), user) || IsReserved(connection.get(), user)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("create the ring of a put: the daemon has no file descriptor left (limit ",
                     DescriptorLimit(), "); raise the daemon's limit of open files (`ulimit -n`)"));
  }
  if (ftruncate(memory.get(), static_cast<off_t>(shape.bytes())) != 0) {
    return ErrnoStatus(errno, "size", "the ring of a put");
  }
  TC_ASSIGN_OR_RETURN(ReservedRange mapping, ReservedRange::Reserve(shape.bytes(), "the ring of a put"));
  TC_RETURN_IF_ERROR(mapping.Map(0, memory.get(), 0, shape.bytes(), ReservedRange::Access::kWrite));
  // Sealed before the client has it, so that the size is right and stays so.
  if (fcntl(memory.get(), F_ADD_SEALS, kRingSeals) != 0) {
    return ErrnoStatus(errno, "seal", "the ring of a put");
  }
  return std::shared_ptr<PutRing>(new PutRing(shape, stall_timeout, std::move(room), std::move(connection),
                                              std::move(memory), std::move(mapping)));
}

PutRing::PutRing(RingShape shape, absl::Duration stall_timeout, RingRoom::Hold room, UniqueFd connection,
                 UniqueFd memory, ReservedRange mapping)
    : room_(std::move(room)),
      shape_(shape),
      stall_timeout_(stall_timeout),
      connection_(std::move(connection)),
      memory_(std::move(memory)),
      mapping_(std::move(mapping)),
      slots_(shape.slots) {}

PutRing::~PutRing() {
  // A client that stalls keeps its mapping, and would keep the pages. MADV_REMOVE takes them from all
  // mappings of the memory. The page in front stays: a client that still looks at it finds nothing new there.
  madvise(mapping_.base() + kRingHeaderBytes, shape_.bytes() - kRingHeaderBytes, MADV_REMOVE);
}

void PutRing::Ask(uint32_t slot, uint64_t image_offset, uint32_t bytes) {
  CHECK_LT(slot, shape_.slots);
  CHECK_LE(bytes, shape_.slot_bytes);
  Slot& ours = slots_[slot];
  // One request at a time. Asking anew gives up the bytes of the last Await: the client may write over them.
  CHECK(!ours.asked);
  ours.asked = true;
  ours.bytes = bytes;
  ours.since = SteadyNow();
  RingSlot& shared = header().slots[slot];
  shared.image_offset.store(image_offset, std::memory_order_relaxed);
  shared.bytes.store(bytes, std::memory_order_relaxed);
  // Last: a client that sees the new number sees the two fields above.
  shared.asked.store(++ours.sequence, std::memory_order_release);
  header().posted.fetch_add(1, std::memory_order_release);
  WakeSleepers(header().posted, 1);
}

absl::StatusOr<ConstHostSpan> PutRing::Await(const RequestContext& context, uint32_t slot,
                                             std::string_view what) {
  Slot& ours = slots_[slot];
  CHECK(ours.asked);
  const std::atomic<uint32_t>& done = header().slots[slot].done;
  while (true) {
    // The only number of the client that decides anything: it has to be the number of this request or of the
    // previous one.
    const uint32_t answer = done.load(std::memory_order_acquire);
    if (answer == ours.sequence) break;
    if (answer != ours.sequence - 1) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": the client answered request ", answer,
                                                     " of a slot instead of request ", ours.sequence,
                                                     "; run the same TensorCast release in both processes"));
    }
    if (closed_.load()) {
      return absl::UnavailableError(absl::StrCat(
          what, ": the client closed its connection in the middle of the put; put the artifact again"));
    }
    TC_RETURN_IF_ERROR(context.Check(what));
    // The client answers in any order, so an answer in any slot shows that it is alive. The time counts from
    // the later of that answer and this request.
    const SteadyTime progress = made_ + absl::Nanoseconds(progress_ns_.load(std::memory_order_relaxed));
    const absl::Duration left = std::max(progress, ours.since) + stall_timeout_ - SteadyNow();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, ": the client has filled nothing for ", absl::FormatDuration(stall_timeout_),
                       " (daemon.peer_timeout); check why the client is stuck, and put the artifact again"));
    }
    SleepWhile(done, answer, std::min({left, TimeLeft(context.deadline), kLookEvery}));
  }
  // Relaxed: the number guards no other memory, and a late view of it only delays the timeout.
  ours.asked = false;
  progress_ns_.store(absl::ToInt64Nanoseconds(SteadyNow() - made_), std::memory_order_relaxed);
  return ConstHostSpan(mapping_.base() + kRingHeaderBytes + uint64_t{slot} * shape_.slot_bytes, ours.bytes);
}

// The connection is shut down, not closed: the server's thread sees it end and does the rest.
void PutRing::End() { shutdown(connection_.get(), SHUT_RDWR); }

}  // namespace tensorcast
