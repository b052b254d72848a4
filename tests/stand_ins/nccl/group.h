// What the ranks of a communicator share, in one process or in many: which has joined, the collective each
// is at, and a ring through which the bytes go. Memory of the process that made the communicator's id, which
// the others open through /proc while that process lives (NCCL needs it as long); so nothing outlives the
// processes. A rank holds a lock on a byte of it, which the kernel takes away when its process ends.
//
// Thread-safe; each Member is used by one thread at a time, but for what says otherwise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"

namespace tensorcast::stand_ins {

inline constexpr int kMaxRanks = 64;

// Fits into an ncclUniqueId.
struct GroupId {
  uint64_t magic = 0;
  int32_t pid = 0;
  int32_t fd = 0;
  uint64_t nonce = 0;
};

// What all ranks have to say in the same way.
struct Collective {
  int32_t root = 0;
  int32_t type = 0;
  uint64_t count = 0;
  friend bool operator==(const Collective&, const Collective&) = default;
  std::string Described() const;
};

// The memory, which stays until all ranks have joined, or this process ends.
absl::StatusOr<GroupId> MakeGroup();

class Member {
 public:
  using Gpu = std::array<char, 16>;  // its UUID

  // As one of `world` ranks. NOT_FOUND: the id's maker is gone. INVALID_ARGUMENT: no id at all, or
  // another rank has this GPU. A violation: the ranks disagree about how many they are, or one joins twice.
  static absl::StatusOr<std::unique_ptr<Member>> Join(const GroupId& id, int world, int rank, const Gpu& gpu);
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member();

  int rank() const { return rank_; }

  enum class Wait { kDone, kStopped, kPeerGone };
  // The waits end early when `stop` says so (from any thread), or a rank that is waited for is gone.
  using Stop = std::function<bool()>;
  Wait AwaitAll(const Stop& stop);
  // Begins the collective, once all ranks have come to it. A violation: another rank has come to another one.
  Wait Begin(const Collective& collective, const Stop& stop);
  // The next piece of the collective's bytes: gives it to all others, or takes it. `move` copies between the
  // ring and this rank's memory; its false leaves the piece where it is, and is Moved::kFailed.
  enum class Moved { kDone, kStopped, kPeerGone, kFailed };
  using Move = std::function<bool(std::byte* piece)>;
  Moved Give(const Stop& stop, const Move& move);
  Moved Take(const Stop& stop, const Move& move);

  static constexpr uint64_t kPieceBytes = uint64_t{256} << 10;

 private:
  struct Shared;
  friend absl::StatusOr<GroupId> MakeGroup();

  Member(UniqueFd fd, Shared* shared, int world, int rank)
      : fd_(std::move(fd)), shared_(shared), world_(world), rank_(rank) {}

  // For all other ranks.
  Wait AwaitOthers(const Stop& stop, const std::function<bool(int rank)>& ready);
  bool IsGone(int rank) const;

  const UniqueFd fd_;  // an open file of its own: the lock is the file's
  Shared* const shared_;
  const int world_;
  const int rank_;
  uint64_t collectives_ = 0;  // begun
  uint64_t pieces_ = 0;       // given and taken, ever: the same number at all ranks
};

}  // namespace tensorcast::stand_ins
