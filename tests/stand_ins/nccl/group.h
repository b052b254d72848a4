// The state that the ranks of a communicator share, in one process or several: which rank has joined, the
// collective of each, and a ring for the bytes. It is memory of the process that made the communicator's id;
// others open it through /proc while that process lives (NCCL needs it as long), so nothing outlives the
// processes. Each rank locks a byte of it, and the kernel releases the lock when the rank's process ends.
//
// Thread-safe; one thread at a time uses each Member, except where noted.
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

// The arguments that must be equal at all ranks.
struct Collective {
  int32_t root = 0;
  int32_t type = 0;
  uint64_t count = 0;
  friend bool operator==(const Collective&, const Collective&) = default;
  std::string Described() const;
};

// Makes the memory, which stays until all ranks have joined or this process ends.
absl::StatusOr<GroupId> MakeGroup();

class Member {
 public:
  using Gpu = std::array<char, 16>;  // its UUID

  // Joins as one of `world` ranks. NOT_FOUND: the id's maker is gone. INVALID_ARGUMENT: not an id, or another
  // rank has this GPU. Violation: the ranks disagree about their number, or one joins twice.
  static absl::StatusOr<std::unique_ptr<Member>> Join(const GroupId& id, int world, int rank, const Gpu& gpu);
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member();

  int rank() const { return rank_; }

  enum class Wait { kDone, kStopped, kPeerGone };
  // The waits end early when `stop` returns true (from any thread), or an awaited rank is gone.
  using Stop = std::function<bool()>;
  Wait AwaitAll(const Stop& stop);
  // Begins the collective once all ranks have reached it. Violation: another rank has reached a different
  // one.
  Wait Begin(const Collective& collective, const Stop& stop);
  // Give passes the next piece of the collective's bytes to all other ranks; Take receives it. `move` copies
  // between the ring and this rank's memory; if it returns false the piece stays, and the result is kFailed.
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

  // Waits until `ready` holds for all other ranks.
  Wait AwaitOthers(const Stop& stop, const std::function<bool(int rank)>& ready);
  bool IsGone(int rank) const;

  const UniqueFd fd_;  // a separate open file, since the lock belongs to it
  Shared* const shared_;
  const int world_;
  const int rank_;
  uint64_t collectives_ = 0;  // number of collectives begun
  uint64_t pieces_ = 0;       // total number given and taken: equal at all ranks
};

}  // namespace tensorcast::stand_ins
