#include "tests/stand_ins/nccl/group.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "tests/stand_ins/violation.h"

namespace tensorcast::stand_ins {
namespace {

constexpr uint64_t kMagic = 0x314c43434e4353;
constexpr uint64_t kPieces = 8;
constexpr absl::Duration kPause = absl::Microseconds(50);

// Of the kind that belongs to an open file, not to a process: ranks are threads as well.
struct flock LockOf(int rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

// New memory is zeros.
struct Member::Shared {
  struct Rank {
    std::atomic<bool> joined;
    Gpu gpu;
    // The collective that it has come to. No rank is two ahead of another, so the last two are kept.
    std::atomic<uint64_t> collectives;
    std::array<Collective, 2> collective;
    std::atomic<uint64_t> taken;  // pieces, ever
  };
  uint64_t nonce;
  std::atomic<int> world;
  std::atomic<int> joined;
  std::array<Rank, kMaxRanks> ranks;
  std::atomic<uint64_t> given;  // pieces, ever
  std::byte ring[kPieces][kPieceBytes];
};

std::string Collective::Described() const {
  return absl::StrCat(count, " elements of type ", type, " from rank ", root);
}

absl::StatusOr<GroupId> MakeGroup() {
  struct Made {
    UniqueFd fd;
    Member::Shared* shared;
  };
  struct AllMade {
    absl::Mutex mutex;
    std::vector<Made> groups ABSL_GUARDED_BY(mutex);
  };
  static AllMade* const made = new AllMade;
  UniqueFd fd(memfd_create("nccl-stand-in", MFD_CLOEXEC));
  if (!fd || ftruncate(fd.get(), sizeof(Member::Shared)) != 0) {
    return ErrnoStatus(errno, "making", "a communicator's memory");
  }
  void* const mapping =
      mmap(nullptr, sizeof(Member::Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return ErrnoStatus(errno, "mapping", "a communicator's memory");
  auto* const shared = static_cast<Member::Shared*>(mapping);
  std::random_device random;
  shared->nonce = uint64_t{random()} << 32 | random();
  const GroupId id{.magic = kMagic, .pid = getpid(), .fd = fd.get(), .nonce = shared->nonce};
  absl::MutexLock lock(&made->mutex);
  // Once all ranks have joined each has a mapping of its own, and the memory lives as long as these.
  std::erase_if(made->groups, [](const Made& group) {
    if (group.shared->world == 0 || group.shared->joined < group.shared->world) return false;
    munmap(group.shared, sizeof(Member::Shared));
    return true;
  });
  made->groups.push_back({.fd = std::move(fd), .shared = shared});
  return id;
}

absl::StatusOr<std::unique_ptr<Member>> Member::Join(const GroupId& id, int world, int rank, const Gpu& gpu) {
  if (id.magic != kMagic) return absl::InvalidArgumentError("no communicator's id");
  const std::string path = absl::StrCat("/proc/", id.pid, "/fd/", id.fd);
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return absl::NotFoundError("the process that made the id is gone");
  void* const mapping = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return ErrnoStatus(errno, "mapping", "a communicator's memory");
  auto* const shared = static_cast<Shared*>(mapping);
  if (shared->nonce != id.nonce) {  // the number was given to another file meanwhile
    munmap(mapping, sizeof(Shared));
    return absl::NotFoundError("the communicator is gone");
  }
  int known = 0;
  if (!shared->world.compare_exchange_strong(known, world) && known != world) {
    Violation("nccl", absl::StrCat("rank ", rank, " joins a communicator of ", world,
                                   " ranks, another rank one of ", known));
  }
  // Before `joined` is set: IsGone looks for the lock of every rank that has joined.
  struct flock lock = LockOf(rank);
  if (fcntl(fd.get(), F_OFD_SETLK, &lock) != 0 || shared->ranks[rank].joined.load()) {
    Violation("nccl", absl::StrCat("rank ", rank, " joins twice"));
  }
  std::unique_ptr<Member> member(new Member(std::move(fd), shared, world, rank));
  shared->ranks[rank].gpu = gpu;
  shared->ranks[rank].joined = true;
  ++shared->joined;
  for (int other = 0; other < world; ++other) {
    if (other != rank && shared->ranks[other].joined.load() && shared->ranks[other].gpu == gpu) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", other, " has the GPU of rank ", rank));
    }
  }
  return member;
}

Member::~Member() { munmap(shared_, sizeof(Shared)); }

Member::Wait Member::AwaitAll(const Stop& stop) {
  return AwaitOthers(stop, [this](int rank) { return shared_->ranks[rank].joined.load(); });
}

Member::Wait Member::Begin(const Collective& collective, const Stop& stop) {
  const uint64_t number = ++collectives_;
  Shared::Rank& own = shared_->ranks[rank_];
  own.collective[number % 2] = collective;
  // After the arguments: the other ranks read those once they see the number.
  own.collectives = number;
  const Wait wait =
      AwaitOthers(stop, [&](int rank) { return shared_->ranks[rank].collectives.load() >= number; });
  if (wait != Wait::kDone) return wait;
  for (int rank = 0; rank < world_; ++rank) {
    const Collective& other = shared_->ranks[rank].collective[number % 2];
    if (other == collective) continue;
    Violation("nccl", absl::StrCat("collective ", number, " of rank ", rank_, " is ", collective.Described(),
                                   ", that of rank ", rank, " is ", other.Described()));
  }
  return Wait::kDone;
}

// The ring holds kPieces pieces: the root waits for the slowest rank.
Member::Moved Member::Give(const Stop& stop, const Move& move) {
  const auto has_room = [this](int rank) { return shared_->ranks[rank].taken.load() + kPieces > pieces_; };
  const Wait wait = AwaitOthers(stop, has_room);
  if (wait != Wait::kDone) return wait == Wait::kStopped ? Moved::kStopped : Moved::kPeerGone;
  if (!move(shared_->ring[pieces_ % kPieces])) return Moved::kFailed;
  shared_->ranks[rank_].taken = ++pieces_;
  // After the bytes: the other ranks read the piece once they see the number.
  shared_->given = pieces_;
  return Moved::kDone;
}

Member::Moved Member::Take(const Stop& stop, const Move& move) {
  const int root = shared_->ranks[rank_].collective[collectives_ % 2].root;
  const auto is_given = [&](int rank) { return rank != root || shared_->given.load() > pieces_; };
  const Wait wait = AwaitOthers(stop, is_given);
  if (wait != Wait::kDone) return wait == Wait::kStopped ? Moved::kStopped : Moved::kPeerGone;
  if (!move(shared_->ring[pieces_ % kPieces])) return Moved::kFailed;
  shared_->ranks[rank_].taken = ++pieces_;
  return Moved::kDone;
}

Member::Wait Member::AwaitOthers(const Stop& stop, const std::function<bool(int rank)>& ready) {
  for (int rank = 0; rank < world_; ++rank) {
    while (rank != rank_ && !ready(rank)) {
      if (stop()) return Wait::kStopped;
      // In this order: what a rank did before it went counts.
      if (IsGone(rank) && !ready(rank)) return Wait::kPeerGone;
      absl::SleepFor(kPause);
    }
  }
  return Wait::kDone;
}

// Each rank locks its byte of the file. The kernel drops the lock with the rank's process, however that
// ends.
bool Member::IsGone(int rank) const {
  if (!shared_->ranks[rank].joined.load()) return false;
  struct flock lock = LockOf(rank);
  return fcntl(fd_.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

}  // namespace tensorcast::stand_ins
