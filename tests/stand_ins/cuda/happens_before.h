// Which operations on GPU memory are ordered before which, and whether two that are not touch the same bytes.
//
// Hardware runs operations of different streams in any order that the program did not forbid, and most of the
// time in the one that the programmer had in mind. This does not look at when something ran but at what the
// program said must come first (vector clocks): an operation comes after those enqueued earlier on its
// stream, after what an event that its stream waited for stands for, and after all that the host had waited
// for when it was enqueued. The host is one, whichever of its threads waited: how these wait for each other
// is not seen here, so nothing that is in order is accused.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tensorcast::stand_ins {

struct Access {
  uint64_t address = 0;  // of host and device memory alike: no address is both
  uint64_t bytes = 0;
  bool write = false;
};

class HappensBefore {
 public:
  using StreamId = uint64_t;
  // By stream: of its operations all up to this one. They are numbered from 1.
  using Clock = std::map<StreamId, uint64_t>;

  // The next operation on the stream. What is wrong with it, for people; empty: nothing.
  std::string Enqueue(StreamId stream, std::vector<Access> accesses);

  // What an event recorded now on the stream stands for, and a stream that waits for such a one.
  Clock Record(StreamId stream) const;
  void Wait(StreamId stream, const Clock& event);

  // The host has waited for what this stands for.
  void HostWaited(const Clock& clock);
  // The memory is about to be freed or to lose its page lock; as Enqueue.
  std::string Release(uint64_t address, uint64_t bytes) const;

 private:
  struct Operation {
    StreamId stream = 0;
    uint64_t number = 0;
    Access access;
  };

  Clock host_;
  std::map<StreamId, Clock> streams_;
  std::vector<Operation> unwaited_;  // by the host: all that a later operation can be in conflict with
};

}  // namespace tensorcast::stand_ins
