#include "tools/workshop/chaos/key_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace tensorcast::chaos {
namespace {

using ::testing::HasSubstr;
using Answer = KeyCall::Answer;
using Kind = KeyCall::Kind;

// Histories of one key in milliseconds.
class KeyHistoryTest : public ::testing::Test {
 protected:
  static SteadyTime At(int ms) { return SteadyTime() + absl::Milliseconds(ms); }
  void Bind(int begin, int end, const std::string& artifact, uint64_t revision) {
    history_.Add({.kind = Kind::kBind,
                  .key = "k",
                  .artifact_id = artifact,
                  .answer = Answer::kDone,
                  .revision = revision,
                  .begin = At(begin),
                  .end = At(end)});
  }
  void Swap(int begin, int end, const std::string& artifact, uint64_t expected, Answer answer) {
    history_.Add({.kind = Kind::kBind,
                  .key = "k",
                  .artifact_id = artifact,
                  .expected_revision = expected,
                  .answer = answer,
                  .revision = answer == Answer::kDone ? expected + 1 : 0,
                  .begin = At(begin),
                  .end = At(end)});
  }
  void BindWithoutAnswer(int begin, int end, const std::string& artifact) {
    history_.Add(
        {.kind = Kind::kBind, .key = "k", .artifact_id = artifact, .begin = At(begin), .end = At(end)});
  }
  void Resolve(int begin, int end, const std::string& artifact, uint64_t revision) {
    history_.Add({.kind = Kind::kResolve,
                  .key = "k",
                  .artifact_id = artifact,
                  .answer = revision == 0 ? Answer::kNotBound : Answer::kDone,
                  .revision = revision,
                  .begin = At(begin),
                  .end = At(end)});
  }
  void Delete(int begin, int end, Answer answer) {
    history_.Add({.kind = Kind::kDelete, .key = "k", .answer = answer, .begin = At(begin), .end = At(end)});
  }
  void ExpectGood() { EXPECT_EQ(history_.Check(), absl::OkStatus()); }
  void ExpectBad(const std::string& about) {
    EXPECT_THAT(std::string(history_.Check().message()), HasSubstr(about));
  }

  KeyHistory history_;
};

TEST_F(KeyHistoryTest, SequentialCalls_AreConsistent) {
  Resolve(0, 1, "", 0);
  Bind(2, 3, "a", 1);
  Swap(4, 5, "b", 1, Answer::kDone);
  Swap(6, 7, "c", 1, Answer::kRefused);
  Resolve(8, 9, "b", 2);
  Delete(10, 11, Answer::kDone);
  Delete(12, 13, Answer::kNotBound);
  Resolve(14, 15, "", 0);
  Bind(16, 17, "a", 3);
  ExpectGood();
  EXPECT_EQ(history_.size(), 9u);
  EXPECT_EQ(history_.acknowledged(), 6u);
}

TEST_F(KeyHistoryTest, OverlappingCalls_MayTakeEffectInAnyOrder) {
  Bind(0, 10, "a", 2);
  Bind(0, 10, "b", 1);
  Resolve(1, 9, "", 0);
  Resolve(2, 8, "b", 1);
  Resolve(3, 20, "a", 2);
  ExpectGood();
}

TEST_F(KeyHistoryTest, LostAcknowledgedChange_IsBad) {
  Bind(0, 1, "a", 1);
  Bind(2, 3, "b", 2);
  Resolve(4, 5, "a", 1);
  ExpectBad("resolve -> a, revision 1, while it was at revision 2 (b)");
}

TEST_F(KeyHistoryTest, ReadOfLaterBind_IsBad) {
  Resolve(0, 1, "a", 1);
  Bind(2, 3, "a", 1);
  ExpectBad("resolve -> a, revision 1, while it was not bound, after revision 0");
}

TEST_F(KeyHistoryTest, SequentialReadsThatGoBackwards_AreBad) {
  Bind(0, 1, "a", 1);
  Bind(2, 30, "b", 2);
  Resolve(3, 10, "b", 2);
  Resolve(11, 20, "a", 1);
  ExpectBad("resolve -> a, revision 1");
}

TEST_F(KeyHistoryTest, SkippedRevision_IsBad) {
  Bind(0, 1, "a", 1);
  Bind(2, 3, "b", 3);
  ExpectBad("bind b, revision 3");
}

TEST_F(KeyHistoryTest, TwoSwapsFromSameRevisionAcknowledged_AreBad) {
  Bind(0, 1, "a", 1);
  Swap(2, 9, "b", 1, Answer::kDone);
  Swap(3, 8, "c", 1, Answer::kDone);
  ExpectBad("if at 1");
}

TEST_F(KeyHistoryTest, RefusalWithoutReason_IsBad) {
  Bind(0, 1, "a", 1);
  Swap(2, 3, "b", 1, Answer::kRefused);
  ExpectBad("bind b if at 1 -> refused");
}

TEST_F(KeyHistoryTest, UnansweredCall_MayTakeEffectLateOrNever) {
  Bind(0, 1, "a", 1);
  BindWithoutAnswer(2, 3, "b");
  BindWithoutAnswer(2, 3, "c");
  Resolve(4, 5, "a", 1);
  Resolve(6, 7, "c", 2);
  ExpectGood();
}

TEST_F(KeyHistoryTest, UnansweredCallThatTakesEffectTwice_IsBad) {
  Bind(0, 1, "a", 1);
  BindWithoutAnswer(2, 3, "b");
  Resolve(4, 5, "b", 2);
  Bind(6, 7, "a", 3);
  Resolve(8, 9, "b", 4);
  ExpectBad("resolve -> b, revision 4");
}

TEST_F(KeyHistoryTest, UnansweredCallThatTakesEffectBeforeItsBegin_IsBad) {
  Bind(0, 1, "a", 1);
  Resolve(2, 3, "b", 2);
  BindWithoutAnswer(4, 5, "b");
  ExpectBad("resolve -> b, revision 2");
}

TEST_F(KeyHistoryTest, CallsToDifferentKeys_AreCheckedIndependently) {
  Bind(0, 1, "a", 1);
  history_.Add({.kind = Kind::kBind,
                .key = "other",
                .artifact_id = "b",
                .answer = Answer::kDone,
                .revision = 1,
                .begin = At(2),
                .end = At(3)});
  Resolve(4, 5, "a", 1);
  ExpectGood();
}

// As when no store answers for a while, and programs ask on.
TEST_F(KeyHistoryTest, ManyUnansweredCalls_AreCheckedCorrectly) {
  Bind(0, 1, "a", 1);
  for (int i = 0; i < 300; ++i) BindWithoutAnswer(10 + i, 11 + i, i % 3 == 0 ? "a" : "b");
  for (int i = 0; i < 300; ++i) Swap(10 + i, 11 + i, "c", i % 7, Answer::kNone);
  Resolve(500, 501, "b", 4);
  Resolve(502, 503, "b", 4);
  Bind(504, 505, "b", 5);
  ExpectGood();
  Resolve(506, 507, "d", 6);
  ExpectBad("resolve -> d, revision 6");
}

// A store that does one thing at a time, asked by several callers at once that wait for their answers, some
// of which never come.
class RandomHistory {
 public:
  explicit RandomHistory(uint32_t seed) : random_(seed) {}

  std::vector<KeyCall> Make(int calls, int callers) {
    std::vector<KeyCall> history;
    std::vector<int> free_at(callers, 0);
    for (int i = 0; i < calls; ++i) {
      // The store comes to it at `now_`; its caller began before, and hears of it later.
      now_ += 1 + Below(3);
      const int caller = Below(callers);
      const int begin = std::min(free_at[caller] + 1, now_);
      KeyCall call = One();
      call.begin = SteadyTime() + absl::Milliseconds(std::max(begin, now_ - Below(20)));
      free_at[caller] = now_ + Below(20);
      call.end = SteadyTime() + absl::Milliseconds(free_at[caller]);
      if (call.kind != Kind::kResolve && Below(20) == 0) {
        call.answer = Answer::kNone;
        call.revision = 0;
      }
      history.push_back(call);
    }
    return history;
  }

 private:
  int Below(int end) { return static_cast<int>(random_() % end); }

  KeyCall One() {
    KeyCall call{.key = "k"};
    const uint64_t current = artifact_.empty() ? 0 : revision_;
    switch (Below(8)) {
      case 0:
        call.kind = Kind::kDelete;
        call.answer = current == 0 ? Answer::kNotBound : Answer::kDone;
        artifact_.clear();
        return call;
      case 1:
      case 2:
      case 3:
        call.kind = Kind::kBind;
        call.artifact_id = std::string(1, static_cast<char>('a' + Below(3)));
        if (Below(2) == 0) call.expected_revision = Below(3) == 0 ? current + 1 : current;
        call.answer = call.expected_revision.value_or(current) == current ? Answer::kDone : Answer::kRefused;
        if (call.answer == Answer::kRefused) return call;
        artifact_ = call.artifact_id;
        call.revision = ++revision_;
        return call;
      default:
        call.answer = current == 0 ? Answer::kNotBound : Answer::kDone;
        call.artifact_id = artifact_;
        call.revision = current;
        return call;
    }
  }

  std::mt19937 random_;
  int now_ = 0;
  uint64_t revision_ = 0;
  std::string artifact_;
};

TEST_F(KeyHistoryTest, OverlappingCallsToSequentialStore_AreConsistent) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    KeyHistory history;
    for (KeyCall& call : RandomHistory(seed).Make(400, 8)) history.Add(std::move(call));
    ASSERT_EQ(history.Check(), absl::OkStatus()) << "seed " << seed;
  }
}

// One answer that the store did not give.
TEST_F(KeyHistoryTest, WrongRevisionAmongManyCalls_IsBad) {
  int spoilt = 0;
  for (uint32_t seed = 0; seed < 8; ++seed) {
    std::vector<KeyCall> calls = RandomHistory(seed).Make(400, 8);
    const auto bind = std::ranges::find_if(calls.begin() + 200, calls.end(), [](const KeyCall& call) {
      return call.kind == Kind::kBind && call.answer == Answer::kDone;
    });
    if (bind == calls.end()) continue;
    ++spoilt;
    bind->revision += 40;
    KeyHistory history;
    for (KeyCall& call : calls) history.Add(std::move(call));
    EXPECT_FALSE(history.Check().ok()) << "seed " << seed;
  }
  EXPECT_GT(spoilt, 5);
}

}  // namespace
}  // namespace tensorcast::chaos
