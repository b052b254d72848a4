#include "core/ingest/chunk_picker.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::chunk_picker_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Source = ChunkPicker::Source;

constexpr int kMany = 1000;
const SteadyTime kStart = SteadyTime() + absl::Seconds(1000);

std::shared_ptr<Availability> Having(uint32_t chunks, const std::vector<uint32_t>& there) {
  auto have = std::make_shared<Availability>(chunks, 1);
  for (const uint32_t chunk : there) have->Add(chunk);
  return have;
}

void Deliver(ChunkPicker& picker, int source, uint32_t chunk, SteadyTime now = kStart) {
  picker.Fetched(source, chunk, now);
  picker.Done(chunk);
}

// The chunks that it is asked for when each comes as soon as it is asked for.
std::vector<uint32_t> DeliverAll(ChunkPicker& picker, int source) {
  std::vector<uint32_t> order;
  while (const auto taken = picker.Take(source, kStart)) {
    order.push_back(taken->chunk);
    Deliver(picker, source, taken->chunk);
  }
  return order;
}

TEST(ChunkPicker, SkippedChunks_AreNotAskedFor) {
  ChunkPicker picker(5, 1);
  for (const uint32_t chunk : {0U, 3U}) picker.Skip(chunk);
  EXPECT_EQ(picker.missing(), 3u);
  const int source = picker.AddSource({.max_fetches = 2});
  EXPECT_THAT(DeliverAll(picker, source), UnorderedElementsAre(1, 2, 4));
  EXPECT_TRUE(picker.all_done());
}

TEST(ChunkPicker, ChunkAtHand_IsNotAskedOfOtherSources) {
  ChunkPicker picker(5, 1);
  const int far = picker.AddSource({.max_fetches = kMany});
  const int disk = picker.AddSource({.max_fetches = kMany, .in_order = true});
  picker.AddSource(
      {.availability = Having(5, {1, 2, 4}), .max_fetches = 1, .in_order = true, .at_hand = true});
  EXPECT_EQ(picker.Take(disk, kStart)->chunk, 0u);
  EXPECT_EQ(picker.Take(far, kStart)->chunk, 3u);
  EXPECT_FALSE(picker.Take(far, kStart).has_value());
  EXPECT_FALSE(picker.Take(disk, kStart).has_value());
}

TEST(ChunkPicker, SourceAtHandStalls_ItsChunksAreAskedOfOthers) {
  ChunkPicker picker(3, 1);
  const int far = picker.AddSource({.max_fetches = kMany});
  const int near = picker.AddSource(
      {.availability = Having(3, {0, 1, 2}), .max_fetches = 1, .in_order = true, .at_hand = true});
  EXPECT_EQ(picker.Take(near, kStart)->chunk, 0u);
  EXPECT_FALSE(picker.Take(far, kStart).has_value());
  picker.Overdue(kStart + absl::Seconds(1));
  EXPECT_TRUE(picker.stalled(near));
  EXPECT_TRUE(picker.Take(far, kStart + absl::Seconds(1)).has_value());
}

TEST(ChunkPicker, SourceOutside_IsAskedOnlyForWhatNoPeerHas) {
  ChunkPicker picker(5, 1);
  const int outside = picker.AddSource({.max_fetches = kMany, .outside = true});
  const int peer = picker.AddSource({.availability = Having(5, {0, 1, 2, 3}), .max_fetches = kMany});
  EXPECT_THAT(DeliverAll(picker, outside), ElementsAre(4));
  EXPECT_EQ(picker.missing(), 4u) << "the peer is not asked more slowly for that";
  EXPECT_TRUE(picker.Take(peer, kStart).has_value());
  picker.Overdue(kStart + absl::Seconds(1));
  ASSERT_TRUE(picker.stalled(peer));
  EXPECT_TRUE(picker.Take(outside, kStart + absl::Seconds(1)).has_value());
}

TEST(ChunkPicker, LastChunkOfPeer_IsNotLeftToFasterSourceOutside) {
  ChunkPicker picker(3, 1);
  const int outside = picker.AddSource({.max_fetches = 1, .outside = true});
  const int peer = picker.AddSource({.availability = Having(3, {1, 2}), .max_fetches = 1});
  EXPECT_EQ(picker.Take(outside, kStart)->chunk, 0u);
  const uint32_t first = picker.Take(peer, kStart)->chunk;
  Deliver(picker, outside, 0, kStart + absl::Milliseconds(1));
  Deliver(picker, peer, first, kStart + absl::Milliseconds(100));
  EXPECT_FALSE(picker.Take(outside, kStart + absl::Milliseconds(100)).has_value());
  EXPECT_TRUE(picker.Take(peer, kStart + absl::Milliseconds(100)).has_value());
}

TEST(ChunkPicker, SourceOutside_IsAskedForLessAsLessIsLeft) {
  ChunkPicker picker(1000, 1);
  const int outside = picker.AddSource({.max_fetches = 8, .outside = true});
  const auto in_flight = [&] {
    std::vector<uint32_t> taken;
    while (const auto chunk = picker.Take(outside, kStart)) taken.push_back(chunk->chunk);
    for (const uint32_t chunk : taken) Deliver(picker, outside, chunk);
    return taken.size();
  };
  EXPECT_EQ(in_flight(), 2u) << "many receivers may begin at once";
  EXPECT_EQ(in_flight(), 4u);
  EXPECT_EQ(in_flight(), 8u);
  const auto have = Having(1000, {});
  picker.AddSource({.availability = have, .max_fetches = 1});
  EXPECT_EQ(in_flight(), 8u);
  for (uint32_t chunk = 40; chunk < 1000; ++chunk) have->Add(chunk);
  EXPECT_LE(in_flight(), 2u) << "of forty that no peer has announced, others may be on their way to peers";
}

TEST(ChunkPicker, PartialSource_IsSpentWhenItsChunksAreDone) {
  ChunkPicker picker(4, 1);
  picker.Skip(3);
  const int whole = picker.AddSource({.max_fetches = kMany});
  const int part =
      picker.AddSource({.availability = Having(4, {0, 2, 3}), .max_fetches = kMany, .in_order = true});
  EXPECT_FALSE(picker.IsSpent(part));
  const uint32_t first = picker.Take(part, kStart)->chunk;
  const uint32_t second = picker.Take(part, kStart)->chunk;
  Deliver(picker, part, first);
  picker.Fetched(part, second, kStart);
  EXPECT_FALSE(picker.IsSpent(part)) << "its last chunk may be wrong";
  picker.PutBack(part, second);
  while (const auto taken = picker.Take(whole, kStart)) Deliver(picker, whole, taken->chunk);
  EXPECT_TRUE(picker.IsSpent(part));
  EXPECT_FALSE(picker.IsSpent(whole));
}

TEST(ChunkPicker, WholeSource_GivesEachChunkOnceInRandomOrder) {
  ChunkPicker picker(300, /*seed=*/1);
  const int source = picker.AddSource({});
  EXPECT_EQ(picker.missing(), 300u);
  std::vector<uint32_t> order = DeliverAll(picker, source);
  EXPECT_FALSE(std::ranges::is_sorted(order))
      << "receivers that go through an image in one order have nothing to exchange";
  EXPECT_EQ(std::set<uint32_t>(order.begin(), order.end()).size(), 300u);
  EXPECT_EQ(order.size(), 300u);
  EXPECT_EQ(picker.missing(), 0u);
  EXPECT_TRUE(picker.all_done());
}

TEST(ChunkPicker, PickerOfNoChunks_IsDone) {
  ChunkPicker picker(0, /*seed=*/1);
  EXPECT_TRUE(picker.all_done());
  EXPECT_EQ(picker.Take(picker.AddSource({}), kStart), std::nullopt);
  EXPECT_THAT(picker.Overdue(kStart), IsEmpty());
}

TEST(ChunkPicker, EqualSeeds_GiveEqualOrder) {
  auto order = [](uint64_t seed) {
    ChunkPicker picker(100, seed);
    return DeliverAll(picker, picker.AddSource({}));
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(ChunkPicker, InOrderSource_IsAskedForTheLowestChunksUpToItsLimit) {
  ChunkPicker picker(100, /*seed=*/1);
  picker.AddSource({.availability = Having(100, {0, 1})});
  const int disk = picker.AddSource({.max_fetches = 4, .in_order = true});
  for (uint32_t chunk = 0; chunk < 4; ++chunk) EXPECT_EQ(picker.Take(disk, kStart)->chunk, chunk);
  EXPECT_EQ(picker.Take(disk, kStart), std::nullopt);
  picker.PutBack(disk, 1);
  EXPECT_EQ(picker.Take(disk, kStart)->chunk, 1u);
}

TEST(ChunkPicker, PutBackChunk_IsGivenAndCountedAgainOnce) {
  ChunkPicker picker(1, /*seed=*/1);
  const int source = picker.AddSource({});
  EXPECT_EQ(picker.Take(source, kStart), (ChunkPicker::Taken{0, false}));
  EXPECT_EQ(picker.missing(), 0u);
  picker.PutBack(source, 0);
  EXPECT_EQ(picker.missing(), 1u);
  EXPECT_EQ(picker.Take(source, kStart), (ChunkPicker::Taken{0, true}));
  picker.Fetched(source, 0, kStart);
  picker.PutBack(source, 0);  // it was wrong
  EXPECT_EQ(picker.Take(source, kStart), (ChunkPicker::Taken{0, false})) << "counted twice";
  Deliver(picker, source, 0);
  EXPECT_TRUE(picker.all_done());
}

TEST(ChunkPicker, FillingSource_IsAskedOnlyForChunksItHas) {
  ChunkPicker picker(200, /*seed=*/1);
  const auto have = Having(200, {7});
  const int source = picker.AddSource({.availability = have});
  EXPECT_THAT(DeliverAll(picker, source), ElementsAre(7));
  have->AddWords(128, {0b11});
  EXPECT_THAT(DeliverAll(picker, source), UnorderedElementsAre(128, 129));
}

TEST(ChunkPicker, RarestChunkOfSource_IsTakenFirst) {
  ChunkPicker picker(4, /*seed=*/1);
  const int whole = picker.AddSource({});
  picker.AddSource({.availability = Having(4, {0, 1, 3})});
  picker.AddSource({.availability = Having(4, {0, 3})});
  const int third = picker.AddSource({.availability = Having(4, {0})});
  EXPECT_THAT(DeliverAll(picker, whole), ElementsAre(2, 1, 3, 0));
  EXPECT_EQ(picker.Take(third, kStart), std::nullopt);
}

TEST(ChunkPicker, RemovedSource_NoLongerCountsForRarity) {
  ChunkPicker picker(2, /*seed=*/1);
  const int whole = picker.AddSource({});
  const int first = picker.AddSource({.availability = Having(2, {0})});
  EXPECT_EQ(picker.Take(first, kStart)->chunk, 0u);
  picker.Fetched(first, 0, kStart);
  picker.RemoveSource(first);
  picker.PutBack(first, 0);  // the last word on what it gave: it was wrong
  picker.AddSource({.availability = Having(2, {1})});
  EXPECT_THAT(DeliverAll(picker, whole), ElementsAre(0, 1));
}

// Receivers with these shares take in turns from one source, and tell each other of every chunk. How many of
// them left the source more than once before all had left it?
int ChunksGivenTwice(const std::vector<uint32_t>& present, uint32_t shares, uint32_t chunks) {
  std::vector<ChunkPicker> pickers;
  std::vector<std::shared_ptr<Availability>> have;
  for (size_t i = 0; i < present.size(); ++i) have.push_back(Having(chunks, {}));
  for (size_t i = 0; i < present.size(); ++i) {
    pickers.emplace_back(chunks, /*seed=*/i);
    pickers.back().AddSource({.share = present[i], .shares = shares});
    for (size_t peer = 0; peer < present.size(); ++peer) {
      if (peer != i) pickers.back().AddSource({.availability = have[peer]});
    }
  }
  std::set<uint32_t> given;
  int twice = 0;
  while (given.size() < chunks) {
    std::vector<uint32_t> taken;  // at once, before any receiver hears of it
    for (ChunkPicker& picker : pickers) taken.push_back(picker.Take(0, kStart)->chunk);
    for (size_t i = 0; i < taken.size(); ++i) {
      Deliver(pickers[i], 0, taken[i]);
      have[i]->Add(taken[i]);
      twice += given.insert(taken[i]).second ? 0 : 1;
    }
  }
  return twice;
}

TEST(ChunkPicker, SharesOfReceivers_LetASourceGiveEachChunkAboutOnce) {
  constexpr uint32_t kChunks = 252;
  EXPECT_LE(ChunksGivenTwice({0, 1, 2, 3, 4, 5, 6}, 7, kChunks), 15);
  EXPECT_LE(ChunksGivenTwice({0, 1, 2, 3, 4, 5, 6}, 8, kChunks), 15) << "a share without a receiver";
  EXPECT_LE(ChunksGivenTwice({1, 5, 6}, 7, kChunks), 15);
  EXPECT_GT(ChunksGivenTwice({0, 0, 0, 0, 0, 0, 0}, 1, kChunks), 20) << "without shares";
}

TEST(ChunkPicker, FetchWindow_FollowsMeasuredChunkTimeUpToLimit) {
  ChunkPicker picker(kMany, /*seed=*/1);
  auto window = [&](int source, SteadyTime now) {
    std::vector<uint32_t> asked;
    while (const auto taken = picker.Take(source, now)) asked.push_back(taken->chunk);
    for (const uint32_t chunk : asked) picker.PutBack(source, chunk);
    return asked.size();
  };
  auto measure = [&](int source, absl::Duration chunk_time) {
    SteadyTime now = kStart;
    for (int i = 0; i < 20; ++i) {
      const uint32_t chunk = picker.Take(source, now)->chunk;
      Deliver(picker, source, chunk, now += chunk_time);
    }
    return now;
  };
  const int slow = picker.AddSource({.max_fetches = 16});
  const int fast = picker.AddSource({.max_fetches = 16});
  const int limited = picker.AddSource({.max_fetches = 3});
  EXPECT_GE(window(slow, kStart), 1u) << "before anything is known";
  const size_t of_slow = window(slow, measure(slow, absl::Milliseconds(100)));
  const size_t of_fast = window(fast, measure(fast, absl::Milliseconds(1)));
  const size_t of_limited = window(limited, measure(limited, absl::Milliseconds(1)));
  EXPECT_GE(of_slow, 1u);
  EXPECT_LE(of_slow, 2u);
  EXPECT_GT(of_fast, of_slow);
  EXPECT_LE(of_fast, 16u);
  EXPECT_EQ(of_limited, 3u);
}

TEST(ChunkPicker, StalledSource_LosesChunksThatAnotherHasAndGetsNoOthers) {
  ChunkPicker picker(10, /*seed=*/1);
  const auto have = Having(10, {8});
  const int stalled = picker.AddSource({.availability = have, .max_fetches = 2});
  const int other = picker.AddSource({.availability = Having(10, {0, 1, 2, 3})});
  picker.Take(stalled, kStart - absl::Milliseconds(1));
  Deliver(picker, stalled, 8);
  have->Add(0);
  have->Add(9);
  Deliver(picker, other, picker.Take(other, kStart)->chunk, kStart + absl::Milliseconds(20));
  std::vector<uint32_t> asked;
  while (const auto taken = picker.Take(stalled, kStart)) asked.push_back(taken->chunk);
  ASSERT_THAT(asked, ElementsAre(9, 0));
  EXPECT_THAT(picker.Overdue(kStart + absl::Milliseconds(200)), IsEmpty());
  const SteadyTime late = kStart + absl::Milliseconds(300);
  EXPECT_THAT(picker.Overdue(late), ElementsAre(ChunkPicker::Fetch{stalled, 0}));
  EXPECT_THAT(picker.Overdue(late), IsEmpty()) << "told twice";
  picker.PutBack(stalled, 0);
  EXPECT_EQ(picker.Take(stalled, late), std::nullopt) << "it was asked for it again";
  const auto elsewhere = DeliverAll(picker, other);
  EXPECT_THAT(elsewhere, ::testing::Contains(0));
  // It has what no other source has, and may yet give it.
  Deliver(picker, stalled, 9, late);
  EXPECT_EQ(picker.missing(), 4u);
}

TEST(ChunkPicker, SilentFirstSource_LosesItsChunkToAnotherSource) {
  ChunkPicker picker(1, /*seed=*/1);
  const int silent = picker.AddSource({});
  ASSERT_TRUE(picker.Take(silent, kStart).has_value());
  EXPECT_THAT(picker.Overdue(kStart + absl::Seconds(1)), IsEmpty()) << "there is nothing better";
  const int other = picker.AddSource({});
  EXPECT_EQ(picker.Take(other, kStart + absl::Seconds(1)), std::nullopt) << "it has one writer";
  EXPECT_THAT(picker.Overdue(kStart + absl::Seconds(1)), ElementsAre(ChunkPicker::Fetch{silent, 0}));
  EXPECT_TRUE(picker.stalled(silent));
  picker.PutBack(silent, 0);
  EXPECT_EQ(picker.Take(silent, kStart + absl::Seconds(1)), std::nullopt);
  EXPECT_TRUE(picker.Take(other, kStart + absl::Seconds(1)).has_value());
}

TEST(ChunkPicker, EquallySlowSources_AreNotStalledAfterFirstChunk) {
  ChunkPicker picker(4, /*seed=*/1);
  const int a = picker.AddSource({});
  const int b = picker.AddSource({});
  ASSERT_TRUE(picker.Take(a, kStart).has_value());
  const uint32_t of_b = picker.Take(b, kStart)->chunk;
  EXPECT_THAT(picker.Overdue(kStart + absl::Seconds(1)), IsEmpty());
  Deliver(picker, b, of_b, kStart + absl::Seconds(2));
  EXPECT_THAT(picker.Overdue(kStart + absl::Seconds(2)), IsEmpty());
  EXPECT_FALSE(picker.stalled(a)) << "a chunk takes two seconds here";
  EXPECT_THAT(picker.Overdue(kStart + absl::Seconds(9)), ::testing::SizeIs(1));
}

// When all chunks are there, if each source takes its next chunk as soon as it has given one.
absl::Duration TimeToDeliver(ChunkPicker& picker, const std::vector<absl::Duration>& chunk_times) {
  struct Asked {
    SteadyTime until;
    uint32_t chunk = 0;
  };
  std::vector<std::optional<Asked>> asked(chunk_times.size());
  for (SteadyTime now = kStart;;) {
    const Asked* next = nullptr;
    for (size_t source = 0; source < asked.size(); ++source) {
      if (!asked[source].has_value()) {
        if (const auto taken = picker.Take(static_cast<int>(source), now)) {
          asked[source] = {now + chunk_times[source], taken->chunk};
        }
      }
      if (asked[source].has_value() && (next == nullptr || asked[source]->until < next->until)) {
        next = &*asked[source];
      }
    }
    if (next == nullptr) return now - kStart;
    now = next->until;
    for (size_t source = 0; source < asked.size(); ++source) {
      if (!asked[source].has_value() || asked[source]->until > now) continue;
      Deliver(picker, static_cast<int>(source), asked[source]->chunk, now);
      asked[source].reset();
    }
  }
}

// The slow source gives one chunk in the first 100 ms, the fast one ten; the last five come from the fast
// one.
TEST(ChunkPicker, SlowSource_LeavesTailToFasterSource) {
  ChunkPicker picker(16, /*seed=*/1);
  picker.AddSource({.in_order = true});
  picker.AddSource({});
  EXPECT_EQ(TimeToDeliver(picker, {absl::Milliseconds(100), absl::Milliseconds(10)}),
            absl::Milliseconds(150));
  EXPECT_TRUE(picker.all_done());
}

TEST(ChunkPicker, FasterSourceLacksChunk_SlowSourceGivesItAtOnce) {
  ChunkPicker picker(16, /*seed=*/1);
  std::vector<uint32_t> others(15);
  std::iota(others.begin(), others.end(), 1);
  picker.AddSource({.availability = Having(16, {0, 1, 2, 3, 4}), .in_order = true});
  picker.AddSource({.availability = Having(16, others)});
  picker.AddSource({.availability = Having(16, others)});
  const absl::Duration fast = absl::Milliseconds(10);
  EXPECT_EQ(TimeToDeliver(picker, {absl::Milliseconds(60), fast, fast}), absl::Milliseconds(80));
  EXPECT_TRUE(picker.all_done());
}

TEST(ChunkPicker, EquallyFastSources_ShareTail) {
  ChunkPicker picker(4, /*seed=*/1);
  picker.AddSource({});
  picker.AddSource({});
  const absl::Duration each = absl::Milliseconds(10);
  EXPECT_EQ(TimeToDeliver(picker, {each, each}), 2 * each);
}

// Random calls against the rules of the header.
TEST(ChunkPicker, RandomCalls_KeepEachChunkInFlightOnceUntilDone) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const uint32_t chunks = 1 + random() % 150;
    ChunkPicker picker(chunks, seed);
    struct Given {
      int source = 0;
      uint32_t chunk = 0;
      bool fetched = false;
    };
    std::vector<Given> given;
    std::vector<std::shared_ptr<Availability>> have = {nullptr};
    std::vector<bool> in_use = {true};
    picker.AddSource({.max_fetches = 3});
    SteadyTime now = kStart;
    for (int step = 0; step < 2000 && !picker.all_done(); ++step) {
      now += absl::Milliseconds(random() % 30);
      const int source = static_cast<int>(random() % have.size());
      switch (random() % 8) {
        case 0:
          if (have.size() < 6) {
            have.push_back(Having(chunks, {}));
            in_use.push_back(true);
            const uint32_t shares = 1 + random() % 3;
            picker.AddSource({.availability = have.back(),
                              .max_fetches = 4,
                              .share = static_cast<uint32_t>(random() % shares),
                              .shares = shares});
          }
          break;
        case 1:
          for (int i = 0; have[source] != nullptr && i < 10; ++i) have[source]->Add(random() % chunks);
          break;
        case 2:
          for (const ChunkPicker::Fetch& fetch : picker.Overdue(now)) {
            const auto found = std::ranges::find_if(given, [&](const Given& one) {
              return one.source == fetch.source && one.chunk == fetch.chunk;
            });
            ASSERT_TRUE(found != given.end() && !found->fetched);
            picker.PutBack(fetch.source, fetch.chunk);
            given.erase(found);
          }
          break;
        case 3:
          if (source != 0 && in_use[source] && std::ranges::none_of(given, [&](const Given& one) {
                return one.source == source && !one.fetched;
              })) {
            picker.RemoveSource(source);
            in_use[source] = false;
          }
          break;
        case 4:
        case 5:
          if (!in_use[source]) break;
          if (const auto taken = picker.Take(source, now)) {
            ASSERT_TRUE(std::ranges::none_of(given, [&](const Given& one) {
              return one.chunk == taken->chunk;
            })) << "under way twice";
            ASSERT_TRUE(have[source] == nullptr || have[source]->Has(taken->chunk));
            given.push_back({source, taken->chunk});
          }
          break;
        default: {
          if (given.empty()) break;
          const size_t i = random() % given.size();
          if (random() % 10 == 0) {
            picker.PutBack(given[i].source, given[i].chunk);
          } else if (!given[i].fetched) {
            picker.Fetched(given[i].source, given[i].chunk, now);
            given[i].fetched = true;
            break;
          } else {
            picker.Done(given[i].chunk);
          }
          given.erase(given.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
    }
    for (const Given& one : given) {
      if (!one.fetched) picker.Fetched(one.source, one.chunk, now);
      picker.Done(one.chunk);
    }
    for (bool gave = true; gave;) {
      gave = false;
      for (int source = 0; source < static_cast<int>(have.size()); ++source) {
        if (in_use[source]) gave |= !DeliverAll(picker, source).empty();
      }
    }
    EXPECT_TRUE(picker.all_done()) << "seed " << seed << ": " << picker.missing() << " missing";
  }
}

}  // namespace
}  // namespace tensorcast::chunk_picker_test
