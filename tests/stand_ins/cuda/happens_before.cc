#include "tests/stand_ins/cuda/happens_before.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tensorcast::stand_ins {
namespace {

bool Overlap(const Access& a, const Access& b) {
  return a.address < b.address + b.bytes && b.address < a.address + a.bytes;
}

void Join(HappensBefore::Clock& clock, const HappensBefore::Clock& other) {
  for (const auto& [stream, number] : other) {
    uint64_t& known = clock[stream];
    known = std::max(known, number);
  }
}

// Whether what has this clock comes after that operation.
bool Knows(const HappensBefore::Clock& clock, HappensBefore::StreamId stream, uint64_t number) {
  const auto known = clock.find(stream);
  return known != clock.end() && known->second >= number;
}

std::string Described(const Access& access) {
  return absl::StrCat(access.write ? "writes " : "reads ", access.bytes, " bytes at ",
                      absl::Hex(access.address));
}

}  // namespace

std::string HappensBefore::Enqueue(StreamId stream, std::vector<Access> accesses) {
  Clock& clock = streams_[stream];
  // All that the host had waited for comes before whatever it enqueues now.
  Join(clock, host_);
  // The clock has the stream's own number, so earlier operations of the same stream never conflict.
  const uint64_t number = ++clock[stream];
  std::string wrong;
  for (const Access& access : accesses) {
    for (const Operation& other : unwaited_) {
      // Two reads are in order however they run.
      if (!access.write && !other.access.write) continue;
      if (!Overlap(access, other.access) || Knows(clock, other.stream, other.number)) continue;
      wrong = absl::StrCat("operation ", number, " of stream ", stream, " ", Described(access),
                           " while operation ", other.number, " of stream ", other.stream, " ",
                           Described(other.access),
                           ", and nothing says which comes first: wait for an event or for the stream");
    }
  }
  for (Access& access : accesses) unwaited_.push_back({stream, number, access});
  return wrong;
}

HappensBefore::Clock HappensBefore::Record(StreamId stream) const {
  const auto clock = streams_.find(stream);
  return clock == streams_.end() ? Clock() : clock->second;
}

void HappensBefore::Wait(StreamId stream, const Clock& event) { Join(streams_[stream], event); }

void HappensBefore::HostWaited(const Clock& clock) {
  Join(host_, clock);
  // What the host knows comes before all that it will enqueue, and so can conflict with nothing.
  std::erase_if(unwaited_, [this](const Operation& operation) {
    return Knows(host_, operation.stream, operation.number);
  });
}

std::string HappensBefore::Release(uint64_t address, uint64_t bytes) const {
  for (const Operation& operation : unwaited_) {
    if (!Overlap({address, bytes, true}, operation.access)) continue;
    return absl::StrCat("memory is given back while operation ", operation.number, " of stream ",
                        operation.stream, " ", Described(operation.access),
                        " and no call has waited for it: wait for the stream first");
  }
  return "";
}

}  // namespace tensorcast::stand_ins
