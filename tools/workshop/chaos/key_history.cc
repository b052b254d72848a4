#include "tools/workshop/chaos/key_history.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tensorcast::chaos {
namespace {

using Kind = KeyCall::Kind;
using Answer = KeyCall::Answer;

// Of calls that a message about one that fits nowhere shows.
constexpr size_t kShown = 12;

struct Key {
  uint64_t last_revision = 0;
  std::string artifact_id;  // empty: not bound

  uint64_t current() const { return artifact_id.empty() ? 0 : last_revision; }
};

// What a store does that does one thing at a time; nothing where it would have answered otherwise. A call
// without an answer has its effect here.
std::optional<Key> Apply(const Key& key, const KeyCall& call) {
  if (call.kind == Kind::kResolve) {
    const bool same = call.answer == Answer::kDone
                          ? key.artifact_id == call.artifact_id && key.current() == call.revision
                          : key.current() == 0;
    return same ? std::optional(key) : std::nullopt;
  }
  const bool bound = key.current() != 0;
  const bool expected = !call.expected_revision.has_value() || *call.expected_revision == key.current();
  const Answer right = call.kind == Kind::kDelete && !bound ? Answer::kNotBound
                       : expected                           ? Answer::kDone
                                                            : Answer::kRefused;
  if (right != (call.answer == Answer::kNone ? Answer::kDone : call.answer)) return std::nullopt;
  if (right != Answer::kDone) return key;
  if (call.kind == Kind::kDelete) return Key{key.last_revision, ""};
  const Key next{key.last_revision + 1, call.artifact_id};
  if (call.answer == Answer::kDone && call.revision != next.last_revision) return std::nullopt;
  return next;
}

// One key's calls, by when they began. Goes forward by one call at a time, and back where nothing fits: those
// with an answer first, since one without need not come at all.
class Search {
 public:
  explicit Search(const std::vector<const KeyCall*>& calls) {
    for (const KeyCall* call : calls) (call->answer == Answer::kNone ? unknown_ : known_).push_back(call);
    placed_.resize(known_.size() + unknown_.size());
    min_from_.assign(known_.size() + 1, std::numeric_limits<uint64_t>::max());
    for (size_t i = known_.size(); i-- > 0;) min_from_[i] = std::min(min_from_[i + 1], MaxBefore(*known_[i]));
  }

  // A depth-first search without recursion: `order` is the path, `next` the place from which the next
  // candidate is looked for. The next call of an order must have begun before the earliest end of those that
  // are left. A step back takes the last call out and goes on behind it.
  absl::Status Run() {
    std::vector<Step> order;
    Key key;
    size_t next = 0;  // to be tried at this place of the order
    for (int tries = 0; tries < kMaxTries; ++tries) {
      const std::optional<size_t> earliest = EarliestEnd();
      if (!earliest.has_value()) return absl::OkStatus();
      if (order.size() >= deepest_) {
        deepest_ = order.size();
        stuck_ = *earliest;
        stuck_key_ = key;
      }
      std::optional<Key> after;
      for (; next < placed_.size(); ++next) {
        const SteadyTime end = known_[*earliest]->end;
        if (next < known_.size() && known_[next]->begin > end) {
          next = known_.size() - 1;  // as are all after it
        }
        if (!MayBeNext(next, end)) continue;
        after = Apply(key, Call(next));
        if (after.has_value() && IsNew(next, *after, end)) break;
        after.reset();
      }
      if (after.has_value()) {
        Place(next, true);
        order.push_back({next, std::exchange(key, *std::move(after))});
        next = first_known_;
        continue;
      }
      if (order.empty()) return Unexplained("no order explains");
      next = order.back().call;
      key = std::move(order.back().before);
      order.pop_back();
      Place(next, false);
      ++next;
    }
    return Unexplained("too many orders were tried to explain");
  }

 private:
  struct Step {
    size_t call = 0;
    Key before;
  };
  static constexpr int kMaxTries = 1'000'000;

  // Those without an answer come behind the others.
  const KeyCall& Call(size_t index) const {
    return index < known_.size() ? *known_[index] : *unknown_[index - known_.size()];
  }

  // Before its end a call must come that began by then: this one's, or an earlier one's.
  std::optional<size_t> EarliestEnd() const {
    std::optional<size_t> earliest;
    for (size_t i = first_known_; i < known_.size(); ++i) {
      if (earliest.has_value() && known_[i]->begin > known_[*earliest]->end) break;
      if (!placed_[i] && (!earliest.has_value() || known_[i]->end < known_[*earliest]->end)) earliest = i;
    }
    return earliest;
  }

  bool MayBeNext(size_t index, SteadyTime end) const {
    if (placed_[index] || Call(index).begin > end) return false;
    // Of calls without an answer that want the same the first may take the place of every other one.
    for (size_t i = known_.size(); i < index; ++i) {
      const KeyCall& earlier = Call(i);
      const KeyCall& call = Call(index);
      if (!placed_[i] && earlier.kind == call.kind && earlier.artifact_id == call.artifact_id &&
          earlier.expected_revision == call.expected_revision) {
        return false;
      }
    }
    return true;
  }

  void Place(size_t index, bool placed) {
    placed_[index] = placed;
    if (!placed) first_known_ = std::min(first_known_, index);
    while (first_known_ < known_.size() && placed_[first_known_]) ++first_known_;
  }

  // The last revision of the key when this call comes can be no higher.
  static uint64_t MaxBefore(const KeyCall& call) {
    if (call.answer != Answer::kDone || call.kind == Kind::kDelete) {
      return std::numeric_limits<uint64_t>::max();
    }
    return call.kind == Kind::kBind ? call.revision - 1 : call.revision;
  }

  // Whether those that have no place yet can follow on such a key: revisions only grow. Asked of what need
  // not have happened, so that a history without any order is explained by what did.
  bool CanFollow(const Key& key, SteadyTime end) const {
    size_t i = first_known_;
    for (; i < known_.size() && known_[i]->begin <= end; ++i) {
      if (!placed_[i] && MaxBefore(*known_[i]) < key.last_revision) return false;
    }
    return min_from_[i] >= key.last_revision;
  }

  // Whether what follows may be good and has not been tried yet: after the same calls, in whatever order, and
  // the same key. `end`: none that began later has a place.
  bool IsNew(size_t index, const Key& after, SteadyTime end) {
    Place(index, true);
    if (Call(index).answer == Answer::kNone && !CanFollow(after, end)) {
      Place(index, false);
      return false;
    }
    // The state is the first call without a place, the later ones that have a place already, and the key.
    // Calls before the first are all placed, so they need not be listed.
    std::vector<size_t> placed;
    for (size_t i = first_known_; i < placed_.size(); ++i) {
      if (placed_[i]) placed.push_back(i);
      if (i < known_.size() && known_[i]->begin > known_[first_known_]->end) i = known_.size() - 1;
    }
    const size_t first = first_known_;
    Place(index, false);
    return seen_.emplace(first, std::move(placed), after.last_revision, after.artifact_id).second;
  }

  absl::Status Unexplained(std::string_view verdict) const {
    const KeyCall& stuck = *known_[stuck_];
    const std::string state =
        stuck_key_.current() == 0
            ? absl::StrCat("not bound, after revision ", stuck_key_.last_revision)
            : absl::StrCat("at revision ", stuck_key_.last_revision, " (", stuck_key_.artifact_id, ")");
    std::string text = absl::StrCat(verdict, " what was answered about key ", stuck.key, ": ",
                                    ToString(stuck), ", while it was ", state, "; answered about then:");
    const size_t first = stuck_ < kShown / 2 ? 0 : stuck_ - kShown / 2;
    for (size_t i = first; i < std::min(known_.size(), first + kShown); ++i) {
      AppendWithTimes(text, *known_[i]);
    }
    absl::StrAppend(&text, "\n ", unknown_.size(), " without an answer, of these began before:");
    for (const KeyCall* call : unknown_) {
      if (call->begin <= stuck.end) AppendWithTimes(text, *call);
    }
    return absl::InternalError(text);
  }

  void AppendWithTimes(std::string& text, const KeyCall& call) const {
    absl::StrAppend(&text, "\n  ", absl::FormatDuration(call.begin - known_.front()->begin), " to ",
                    absl::FormatDuration(call.end - known_.front()->begin), ": ", ToString(call));
  }

  std::vector<const KeyCall*> known_;
  std::vector<const KeyCall*> unknown_;
  std::vector<bool> placed_;        // of both
  std::vector<uint64_t> min_from_;  // of MaxBefore, from each of those with an answer on
  size_t first_known_ = 0;          // that has no place yet
  std::set<std::tuple<size_t, std::vector<size_t>, uint64_t, std::string>> seen_;
  // For the message: where the longest order ended.
  size_t deepest_ = 0;
  size_t stuck_ = 0;
  Key stuck_key_;
};

}  // namespace

std::string ToString(const KeyCall& call) {
  std::string text = call.kind == Kind::kBind     ? absl::StrCat("bind ", call.artifact_id)
                     : call.kind == Kind::kDelete ? "delete"
                                                  : "resolve";
  if (call.expected_revision.has_value()) absl::StrAppend(&text, " if at ", *call.expected_revision);
  switch (call.answer) {
    case Answer::kDone:
      if (call.kind == Kind::kResolve) absl::StrAppend(&text, " -> ", call.artifact_id);
      return absl::StrCat(
          text, call.kind == Kind::kDelete ? " -> done" : absl::StrCat(", revision ", call.revision));
    case Answer::kNotBound:
      return absl::StrCat(text, " -> not bound");
    case Answer::kRefused:
      return absl::StrCat(text, " -> refused");
    case Answer::kNone:
      break;
  }
  return absl::StrCat(text, " -> no answer");
}

void KeyHistory::Add(KeyCall call) {
  if (call.kind == Kind::kResolve && call.answer == Answer::kNone) return;
  absl::MutexLock lock(&mutex_);
  if (call.kind != Kind::kResolve) ++(call.answer == Answer::kNone ? unknown_ : acknowledged_);
  calls_.push_back(std::move(call));
}

absl::Status KeyHistory::Check() const {
  absl::MutexLock lock(&mutex_);
  std::map<std::string, std::vector<const KeyCall*>> by_key;
  for (const KeyCall& call : calls_) by_key[call.key].push_back(&call);
  for (auto& [key, calls] : by_key) {
    std::ranges::stable_sort(calls, {}, &KeyCall::begin);
    if (absl::Status explained = Search(calls).Run(); !explained.ok()) return explained;
  }
  return absl::OkStatus();
}

size_t KeyHistory::size() const {
  absl::MutexLock lock(&mutex_);
  return calls_.size();
}

size_t KeyHistory::acknowledged() const {
  absl::MutexLock lock(&mutex_);
  return acknowledged_;
}

size_t KeyHistory::unknown() const {
  absl::MutexLock lock(&mutex_);
  return unknown_;
}

bool KeyHistory::AwaitAcknowledged(size_t more, SteadyTime deadline) const {
  absl::MutexLock lock(&mutex_);
  return AwaitMore(acknowledged_, more, deadline);
}

bool KeyHistory::AwaitUnknown(size_t more, SteadyTime deadline) const {
  absl::MutexLock lock(&mutex_);
  return AwaitMore(unknown_, more, deadline);
}

bool KeyHistory::AwaitMore(const size_t& count, size_t more, SteadyTime deadline) const {
  const auto there = [&count, min = count + more] { return count >= min; };
  return mutex_.AwaitWithTimeout(absl::Condition(&there), TimeLeft(deadline));
}

}  // namespace tensorcast::chaos
