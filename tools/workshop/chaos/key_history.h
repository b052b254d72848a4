// Records calls about keys, with their times and answers, and checks whether a store that does one thing at a
// time could have given the same answers in some order (linearizability). The order has to keep calls in
// sequence if one ended before the other began. A call that ended without an answer may have had its effect
// at any moment since it began, or never.
//
// The search follows Wing and Gong (Testing and Verifying Concurrent Objects, 1993), for each key separately,
// and remembers states that led nowhere (Lowe, Testing for linearizability, 2017).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/steady_time.h"

namespace tensorcast::chaos {

struct KeyCall {
  enum class Kind : uint8_t { kBind, kResolve, kDelete };
  // kRefused: for a bind or a delete, its expected revision was not the key's.
  enum class Answer : uint8_t { kDone, kNotBound, kRefused, kNone };

  Kind kind = Kind::kResolve;
  std::string key;
  std::string artifact_id;                    // to bind, or resolved
  std::optional<uint64_t> expected_revision;  // 0: not bound
  Answer answer = Answer::kNone;
  uint64_t revision = 0;  // bound or resolved
  SteadyTime begin;       // before the call
  SteadyTime end;         // after the answer
};

std::string ToString(const KeyCall& call);

// Thread-safe.
class KeyHistory {
 public:
  // A resolution without an answer is left out, since it proves nothing.
  void Add(KeyCall call) ABSL_LOCKS_EXCLUDED(mutex_);
  // INTERNAL, with the first call that fits nowhere and the calls before it, if there is no such order. Takes
  // time that grows with the square of a key's calls; meant for some thousands of calls.
  absl::Status Check() const ABSL_LOCKS_EXCLUDED(mutex_);

  size_t size() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The numbers of binds and deletes with an answer, and without one.
  size_t acknowledged() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t unknown() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether there are `more` further ones by `deadline`.
  bool AwaitAcknowledged(size_t more, SteadyTime deadline) const ABSL_LOCKS_EXCLUDED(mutex_);
  bool AwaitUnknown(size_t more, SteadyTime deadline) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool AwaitMore(const size_t& count, size_t more, SteadyTime deadline) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  size_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t unknown_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<KeyCall> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::chaos
