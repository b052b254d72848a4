#include "tensorcast/changes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/testing/client_fixture.h"
#include "core/difference/test_util.h"

namespace tensorcast::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Memory = std::vector<std::byte>;

// Over a chunk, and two in one chunk.
constexpr size_t kLargeBytes = (size_t{5} << 18) + 6;
constexpr size_t kSmallBytes = 3000;

// A version: two tensors of bf16 and one of fp32.
struct Version {
  Memory large = Memory(kLargeBytes);
  Memory small = Memory(kSmallBytes);
  Memory scale = Memory(400);
  std::string id;

  std::vector<std::span<std::byte>> memory() { return {large, small, scale}; }
};

void Fill(Version& version) {
  testing::FillWeights(version.large, 1);
  testing::FillWeights(version.small, 2);
  testing::FillWeights(version.scale, 3);
}

class ChangesTest : public ClientTest {
 protected:
  ChangesTest() {
    Fill(first_);
    Put(first_);
  }

  void Put(Version& version) {
    const PutTensor tensors[] = {{"large", DType::kBF16, {version.large.size() / 2}, version.large},
                                 {"small", DType::kBF16, {version.small.size() / 2}, version.small},
                                 {"scale", DType::kF32, {version.scale.size() / 4}, version.scale}};
    const auto put = client_->Put(Context(), tensors);
    ASSERT_TRUE(put.ok()) << put.status();
    version.id = put->artifact_id;
  }

  // The next version, put without a difference.
  Version After(const Version& version, double changed, uint64_t seed) {
    Version next = version;
    testing::StepByUlps(next.large, changed, seed);
    testing::StepByUlps(next.small, changed, seed + 1);
    next.scale[4] ^= std::byte{1};
    Put(next);
    return next;
  }

  void KeepDifference(const Version& base, const Version& target) {
    auto from = client_->Get(Context(), base.id);
    auto to = client_->Get(Context(), target.id);
    ASSERT_TRUE(from.ok() && to.ok());
    ImageLayout layout = testing::LayoutOfTensors({{DType::kBF16, target.large.size() / 2},
                                                   {DType::kBF16, target.small.size() / 2},
                                                   {DType::kF32, target.scale.size() / 4}});
    const auto encoded = testing::EncodeImage(GeometryOf(layout), (*from)->image(), (*to)->image());
    ASSERT_TRUE(encoded.has_value());
    daemon_->KeepDifference(base.id, target.id, *encoded);
  }

  std::unique_ptr<Changes> Find(const std::string& base, const Version& target, bool compare = true) {
    auto replica = client_->Get(Context(), target.id);
    EXPECT_TRUE(replica.ok()) << replica.status();
    target_ = *std::move(replica);
    auto changes = Changes::Find(*client_, Context(), base, *target_, {.compare = compare});
    EXPECT_TRUE(changes.ok()) << changes.status();
    return *std::move(changes);
  }

  // What a comparison of the bytes says of elements of two bytes.
  static std::vector<int64_t> Changed(const Memory& before, const Memory& after) {
    std::vector<int64_t> indices;
    for (size_t i = 0; i < after.size(); i += 2) {
      if (std::memcmp(&before[i], &after[i], 2) != 0) indices.push_back(static_cast<int64_t>(i / 2));
    }
    return indices;
  }

  static Memory ValuesAt(const Memory& bytes, const std::vector<int64_t>& indices, size_t width) {
    Memory values;
    for (const int64_t index : indices) {
      const auto* const value = bytes.data() + static_cast<size_t>(index) * width;
      values.insert(values.end(), value, value + width);
    }
    return values;
  }

  static void ExpectChanges(const Changes& changes, const Version& before, const Version& after) {
    const TensorChanges large = changes.Of(0);
    EXPECT_FALSE(large.whole);
    EXPECT_EQ(large.indices, Changed(before.large, after.large));
    EXPECT_EQ(large.values, ValuesAt(after.large, large.indices, 2));
    const TensorChanges small = changes.Of(1);
    EXPECT_EQ(small.indices, Changed(before.small, after.small));
    EXPECT_EQ(small.values, ValuesAt(after.small, small.indices, 2));
    const TensorChanges scale = changes.Of(2);
    EXPECT_THAT(scale.indices, ElementsAre(1));
    EXPECT_EQ(scale.values, ValuesAt(after.scale, {1}, 4));
  }

  static void ExpectSame(const Version& written, const Version& wanted) {
    EXPECT_TRUE(written.large == wanted.large);
    EXPECT_TRUE(written.small == wanted.small);
    EXPECT_TRUE(written.scale == wanted.scale);
  }

  Version first_;
  std::unique_ptr<Replica> target_;
};

TEST_F(ChangesTest, StoreHasDifference_GivesItsElements) {
  Version second = After(first_, 0.02, 10);
  KeepDifference(first_, second);
  const auto changes = Find(first_.id, second);
  EXPECT_EQ(changes->source(), ChangesSource::kDifferences);
  EXPECT_EQ(changes->differences(), 1u);
  EXPECT_EQ(changes->base_id(), first_.id);
  ExpectChanges(*changes, first_, second);
}

TEST_F(ChangesTest, StoreHasNoDifference_ComparesBothImages) {
  Version second = After(first_, 0.02, 10);
  const auto changes = Find(first_.id, second);
  EXPECT_EQ(changes->source(), ChangesSource::kComparison);
  ExpectChanges(*changes, first_, second);
}

TEST_F(ChangesTest, BaseIsKey_MeansItsArtifact) {
  daemon_->SetKey("policy", first_.id, 1);
  Version second = After(first_, 0.02, 10);
  const auto changes = Find("policy", second);
  EXPECT_EQ(changes->base_id(), first_.id);
  ExpectChanges(*changes, first_, second);
}

TEST_F(ChangesTest, TwoDifferencesLeadThere_GivesElementsOfEither) {
  Version second = After(first_, 0.02, 10);
  Version third = After(second, 0.02, 20);
  KeepDifference(first_, second);
  KeepDifference(second, third);
  const auto changes = Find(first_.id, third);
  EXPECT_EQ(changes->differences(), 2u);
  Version written = first_;
  ASSERT_TRUE(changes->WriteTo(Context(), written.memory()).ok());
  ExpectSame(written, third);
  // From any mixture of the three, too: an element that the second version alone has is among them.
  for (size_t i = 0; i < written.large.size(); i += 2) {
    const Version& one = i % 6 == 0 ? first_ : i % 6 == 2 ? second : third;
    std::memcpy(&written.large[i], &one.large[i], 2);
  }
  ASSERT_TRUE(changes->WriteTo(Context(), written.memory()).ok());
  ExpectSame(written, third);
}

TEST_F(ChangesTest, Rollback_UsesDifferenceOfOtherDirection) {
  Version second = After(first_, 0.02, 10);
  KeepDifference(first_, second);
  const auto changes = Find(second.id, first_);
  EXPECT_EQ(changes->source(), ChangesSource::kDifferences);
  ExpectChanges(*changes, second, first_);
}

TEST_F(ChangesTest, SameArtifact_ChangesNothing) {
  const auto changes = Find(first_.id, first_);
  EXPECT_EQ(changes->source(), ChangesSource::kSame);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(changes->Of(i).whole);
    EXPECT_THAT(changes->Of(i).indices, IsEmpty());
  }
  Version written;
  const auto report = changes->WriteTo(Context(), written.memory());
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->elements + report->whole_bytes, 0u);
}

TEST_F(ChangesTest, DenselyChangedTensor_IsGivenWhole) {
  Version second = After(first_, 0.5, 10);
  const auto changes = Find(first_.id, second);
  EXPECT_TRUE(changes->Of(0).whole);
  EXPECT_THAT(changes->Of(0).indices, IsEmpty());
  EXPECT_THAT(changes->Of(2).indices, ElementsAre(1));
}

TEST_F(ChangesTest, TensorOfOtherShape_IsGivenWhole) {
  Version second = first_;
  second.small.resize(kSmallBytes / 2);
  Put(second);
  const auto changes = Find(first_.id, second);
  EXPECT_FALSE(changes->Of(0).whole);
  EXPECT_TRUE(changes->Of(1).whole);
}

TEST_F(ChangesTest, ChunkThatDifferenceLacks_IsWrittenWhole) {
  Version second = After(first_, 0.02, 10);
  // Noise in the last chunk, of which the encoder makes no record. The smaller tensors lie there, too.
  constexpr size_t kChunk = size_t{1} << 20;
  std::mt19937_64 random(3);
  for (size_t i = kChunk; i < kLargeBytes; ++i) second.large[i] = static_cast<std::byte>(random());
  Put(second);
  KeepDifference(first_, second);
  const auto changes = Find(first_.id, second);
  EXPECT_EQ(changes->source(), ChangesSource::kDifferences);
  EXPECT_TRUE(changes->Of(0).whole);
  EXPECT_TRUE(changes->Of(1).whole);
  Version written = first_;
  const auto report = changes->WriteTo(Context(), written.memory());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->whole_bytes, kLargeBytes - kChunk + kSmallBytes + 400);
  EXPECT_GT(report->elements, 0u);
  ExpectSame(written, second);
}

TEST_F(ChangesTest, UnknownBase_WritesAll) {
  for (const std::string& base : {std::string(), first_.id}) {
    Version second = After(first_, 0.02, 10);
    const auto changes = Find(base, second, /*compare=*/false);
    EXPECT_EQ(changes->source(), ChangesSource::kWhole);
    EXPECT_TRUE(changes->Of(0).whole);
    Version written;
    const auto report = changes->WriteTo(Context(), written.memory());
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->whole_bytes, kLargeBytes + kSmallBytes + 400);
    ExpectSame(written, second);
  }
}

TEST_F(ChangesTest, HalfWrittenMemory_EndsAsTarget) {
  Version second = After(first_, 0.1, 10);
  KeepDifference(first_, second);
  for (const bool by_difference : {true, false}) {
    const auto changes = Find(first_.id, second);
    std::mt19937_64 random(7);
    for (int round = 0; round < 10; ++round) {
      Version written = first_;
      for (size_t i = 0; i < written.large.size(); i += 2) {
        if (random() % 2 == 0) std::memcpy(&written.large[i], &second.large[i], 2);
      }
      if (round % 2 == 0) written.small = second.small;
      for (int again = 0; again < 2; ++again) {
        const auto report = changes->WriteTo(Context(), written.memory());
        ASSERT_TRUE(report.ok()) << report.status();
        EXPECT_EQ(report->elements, Changed(first_.large, second.large).size() +
                                        Changed(first_.small, second.small).size() + 1);
        EXPECT_EQ(report->whole_bytes, 0u);
        ExpectSame(written, second);
      }
    }
    if (by_difference) daemon_->ForgetDifferences();
  }
}

TEST_F(ChangesTest, TensorWithoutMemory_IsLeftOut) {
  Version second = After(first_, 0.02, 10);
  const auto changes = Find(first_.id, second);
  Version written = first_;
  auto memory = written.memory();
  memory[1] = {};
  ASSERT_TRUE(changes->WriteTo(Context(), memory).ok());
  EXPECT_TRUE(written.large == second.large);
  EXPECT_TRUE(written.small == first_.small);
}

TEST_F(ChangesTest, MemoryOfOtherSize_IsRefusedByName) {
  const auto changes = Find("", first_);
  Version written = first_;
  auto memory = written.memory();
  memory[1] = memory[1].first(10);
  const auto report = changes->WriteTo(Context(), memory);
  EXPECT_TRUE(absl::IsInvalidArgument(report.status()));
  EXPECT_THAT(report.status().message(),
              HasSubstr("\"small\" has 3000 bytes, but the caller gave memory of 10"));
}

TEST_F(ChangesTest, CancelledWrite_CanBeRepeated) {
  Version second = After(first_, 0.02, 10);
  const auto changes = Find(first_.id, second);
  Version written = first_;
  RequestContext cancelled = Context();
  cancelled.cancellation.Cancel();
  EXPECT_TRUE(absl::IsCancelled(changes->WriteTo(cancelled, written.memory()).status()));
  ASSERT_TRUE(changes->WriteTo(Context(), written.memory()).ok());
  ExpectSame(written, second);
}

TEST_F(ChangesTest, Differing_NamesTensorsThatAreNotTheTarget) {
  Version second = After(first_, 0.02, 10);
  Find(first_.id, second);
  const auto differing = [&](Version& version) {
    auto found = Changes::Differing(Context(), *target_, version.memory());
    EXPECT_TRUE(found.ok()) << found.status();
    return *std::move(found);
  };
  EXPECT_THAT(differing(second), IsEmpty());
  EXPECT_THAT(differing(first_), ElementsAre(0, 1, 2));
  Version written = second;
  written.small[7] ^= std::byte{1};
  EXPECT_THAT(differing(written), ElementsAre(1));
  written.large.back() ^= std::byte{1};
  EXPECT_THAT(differing(written), ElementsAre(0, 1));
}

TEST_F(ChangesTest, SomeTensorsOfTarget_AreWritten) {
  Version second = After(first_, 0.02, 10);
  KeepDifference(first_, second);
  auto replica = client_->Get(Context(), second.id, {.tensors = {"small"}});
  ASSERT_TRUE(replica.ok());
  const auto changes = Changes::Find(*client_, Context(), first_.id, **replica);
  ASSERT_TRUE(changes.ok()) << changes.status();
  Version written = first_;
  ASSERT_TRUE((*changes)->WriteTo(Context(), {{written.memory()[1]}}).ok());
  EXPECT_TRUE(written.small == second.small);
  const auto differing = Changes::Differing(Context(), **replica, {{written.memory()[1]}});
  ASSERT_TRUE(differing.ok()) << differing.status();
  EXPECT_THAT(*differing, IsEmpty());
}

}  // namespace
}  // namespace tensorcast::client
