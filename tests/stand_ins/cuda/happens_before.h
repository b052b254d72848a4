// Determines the order of operations on GPU memory, and whether two unordered ones touch the same bytes.
//
// Hardware runs operations of different streams in any order that the program did not forbid, and mostly in
// the order that the programmer expected. This class ignores when an operation ran and uses only the order
// that the program requires (vector clocks). An operation comes after the operations enqueued earlier on its
// stream, after those covered by an event for which its stream waited, and after all for which the host had
// waited when it was enqueued. All threads of the host count as one: how they wait for each other is not
// visible here, so no ordered program is accused.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tensorcast::stand_ins {

struct Access {
  uint64_t address = 0;  // in host or device memory: their addresses are distinct
  uint64_t bytes = 0;
  bool write = false;
};

class HappensBefore {
 public:
  using StreamId = uint64_t;
  // By stream: its operations up to this number. Operations are numbered from 1.
  using Clock = std::map<StreamId, uint64_t>;

  // Adds the next operation of the stream. Returns its error, for people; empty: none.
  std::string Enqueue(StreamId stream, std::vector<Access> accesses);

  // Record returns what an event recorded now on the stream covers; Wait makes a stream wait for an event.
  Clock Record(StreamId stream) const;
  void Wait(StreamId stream, const Clock& event);

  // The host has waited for all that the clock covers.
  void HostWaited(const Clock& clock);
  // The memory is about to be freed or unlocked; returns as Enqueue.
  std::string Release(uint64_t address, uint64_t bytes) const;

 private:
  struct Operation {
    StreamId stream = 0;
    uint64_t number = 0;
    Access access;
  };

  Clock host_;
  std::map<StreamId, Clock> streams_;
  std::vector<Operation> unwaited_;  // operations for which the host has not waited: only these can conflict
                                     // with later ones
};

}  // namespace tensorcast::stand_ins
