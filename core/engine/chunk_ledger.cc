#include "core/engine/chunk_ledger.h"

#include <algorithm>

#include "absl/log/check.h"

namespace tensorcast {

// A chunk goes from missing to under way, and to done or back to missing (returned). The states with "again"
// say that its second fetch is counted already, however often it is fetched after that.
std::optional<ChunkLedger::Taken> ChunkLedger::Take() {
  for (; next_ < states_.size(); ++next_) {
    State& state = states_[next_];
    const bool missing =
        state == State::kMissing || state == State::kReturned || state == State::kReturnedAgain;
    if (!missing) continue;
    const bool again = state == State::kReturned;
    state = state == State::kMissing ? State::kUnderWay : State::kUnderWayAgain;
    --missing_;
    return Taken{next_++, again};
  }
  return std::nullopt;
}

void ChunkLedger::PutBack(uint32_t chunk) {
  State& state = states_[chunk];
  CHECK(state == State::kUnderWay || state == State::kUnderWayAgain) << "chunk " << chunk;
  state = state == State::kUnderWay ? State::kReturned : State::kReturnedAgain;
  // The scan starts anew where something is missing again, so that chunks go out in order.
  next_ = std::min(next_, chunk);
  ++missing_;
}

void ChunkLedger::Done(uint32_t chunk) {
  State& state = states_[chunk];
  CHECK(state == State::kUnderWay || state == State::kUnderWayAgain) << "chunk " << chunk;
  state = State::kDone;
  ++done_;
}

}  // namespace tensorcast
