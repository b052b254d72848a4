// Which chunks of an image are missing, under way, or done. Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tensorcast {

class ChunkLedger {
 public:
  explicit ChunkLedger(uint32_t chunks) : states_(chunks, State::kMissing), missing_(chunks) {}

  struct Taken {
    uint32_t chunk = 0;
    bool again = false;  // the first time that it is taken after it was put back
  };
  // The first missing chunk, which is then under way; nullopt when none is missing.
  std::optional<Taken> Take();
  // REQUIRES: the chunk is under way.
  void PutBack(uint32_t chunk);
  void Done(uint32_t chunk);

  uint32_t missing() const { return missing_; }
  bool all_done() const { return done_ == states_.size(); }

 private:
  enum class State : uint8_t { kMissing, kReturned, kUnderWay, kUnderWayAgain, kReturnedAgain, kDone };

  std::vector<State> states_;
  uint32_t next_ = 0;  // no chunk before it is missing
  uint32_t missing_;
  uint32_t done_ = 0;
};

}  // namespace tensorcast
