#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/check.h"
#include "core/artifact/test_util.h"
#include "core/device/fake_device.h"
#include "core/device/testing/device_bytes.h"
#include "core/device/testing/device_faults.h"
#include "core/device/testing/fault_hooks.h"
#include "core/difference/chunk_encoder.h"
#include "core/difference/difference_artifact.h"
#include "core/difference/difference_encoder.h"
#include "core/replica/transfer_report.h"
#include "core/testing/scripted_source.h"
#include "core/testing/test_artifact.h"
#include "daemon/sources/difference_provider.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

using tensorcast::testing::DigestsOf;
using tensorcast::testing::MakeChunkedArtifact;
using tensorcast::testing::MakeControl;
using tensorcast::testing::ScriptedProvider;
using tensorcast::testing::SourceControl;
using tensorcast::testing::TestArtifact;

constexpr uint64_t kChunkBytes = 4096;
constexpr uint32_t kChunks = 12;
constexpr Location kCpu{LocationKind::kCpu};
constexpr Location kGpu{LocationKind::kGpu, 0};
constexpr Location kOtherGpu{LocationKind::kGpu, 1};

void Seal(TestArtifact& artifact, std::map<std::string, std::string> metadata, ArtifactKind kind) {
  auto manifest = Manifest::Create(artifact.layout, DigestsOf(artifact.layout, artifact.image),
                                   std::move(metadata), kind);
  CHECK_OK(manifest.status());
  artifact.manifest = *std::move(manifest);
}

// With other bytes: up to `changes` in each chunk, and all of `replaced`.
TestArtifact NextVersion(TestArtifact artifact, uint64_t seed, const std::vector<uint32_t>& replaced = {},
                         int changes = 40) {
  std::mt19937_64 random(seed);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    for (int i = 0; i < changes; ++i) {
      artifact.image[chunk * kChunkBytes + random() % kChunkBytes] ^= std::byte{3};
    }
  }
  for (const uint32_t chunk : replaced) {
    for (uint64_t i = 0; i < kChunkBytes; ++i) {
      artifact.image[chunk * kChunkBytes + i] = static_cast<std::byte>(random());
    }
  }
  Seal(artifact, {{"seed", std::to_string(seed)}}, ArtifactKind::kTensors);
  return artifact;
}

TestArtifact MakeDifference(const TestArtifact& base, const TestArtifact& target) {
  DifferenceEncoder encoder(GeometryOf(target.layout));
  ChunkEncoder chunks(encoder);
  for (uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    const ByteRange range = target.layout.chunk(chunk);
    chunks.Encode(chunk, std::span(base.image).subspan(range.offset, range.bytes),
                  std::span(target.image).subspan(range.offset, range.bytes));
  }
  const std::optional<EncodedDifference> encoded = encoder.Finish();
  CHECK(encoded.has_value());
  TestArtifact difference;
  difference.layout = encoded->layout;
  difference.image.resize(difference.layout.image_bytes);
  encoded->CopyImage({0, difference.image.size()}, difference.image.data());
  Seal(difference, DifferenceMetadata({.base = base.manifest->id(), .target = target.manifest->id()}),
       ArtifactKind::kDifference);
  return difference;
}

// A GPU that changes elements wrong.
class SpoilsChanges final : public FakeDeviceHooks {
 public:
  absl::Status BeforeAllocation() override { return absl::OkStatus(); }
  absl::Status BeforeCopy(int) override { return absl::OkStatus(); }
  absl::Status CheckHealth(int) override { return absl::OkStatus(); }
  void AfterChange(void* block) override { *static_cast<std::byte*>(block) ^= std::byte{1}; }
};

class DifferenceSourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    engine_.reset();
    auto pool = HostPool::Create({.bytes = 64 << 20, .use_huge_pages = false, .prefault_threads = 0});
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    auto devices = CreateFakeRuntime({.device_count = 2, .device_bytes = 16 << 20, .hooks = hooks_});
    ASSERT_TRUE(devices.ok()) << devices.status();
    devices_ = *std::move(devices);
    auto engine = StoreEngine::Create({.node_id = "me",
                                       .host_pool = pool_.get(),
                                       .devices = devices_.get(),
                                       .staging_buffer_bytes = kChunkBytes,
                                       .device_verification = device_verification_,
                                       .distrust_other_hosts = distrust_other_hosts_});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  // As a replica, from a source of its own.
  void Have(const TestArtifact& artifact, Location location = kCpu) {
    auto lease =
        Ingest(artifact, std::make_shared<ScriptedProvider>(std::vector{MakeControl(artifact.image)}),
               /*advance=*/nullptr, location);
    ASSERT_TRUE(lease.ok()) << lease.status();
  }
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Ingest(const TestArtifact& artifact,
                                                       std::shared_ptr<SourceProvider> sources,
                                                       std::shared_ptr<Advance> advance = nullptr,
                                                       Location location = kCpu) {
    auto pending = engine_->Ingest(context_, {.manifest = artifact.manifest,
                                              .location = location,
                                              .sources = std::move(sources),
                                              .advance = std::move(advance)});
    if (!pending.ok()) return pending.status();
    auto lease = (*pending)->Wait(context_);
    report_ = (*pending)->report().value_or(TransferReport());
    return lease;
  }
  // Made from the base and these differences, with `far` for the rest; and compared.
  void Rebuild(const TestArtifact& base, const std::vector<TestArtifact>& differences,
               const TestArtifact& target, const std::shared_ptr<SourceControl>& far,
               const std::shared_ptr<Advance>& advance = nullptr, Location base_location = kCpu,
               Location location = kCpu) {
    DifferencePath path{.base_id = base.manifest->id(), .base_location = base_location};
    for (const TestArtifact& difference : differences) path.differences.push_back(difference.manifest);
    path.on_made_wrong = [this] { ++made_wrong_; };
    path.advance = advance;
    auto lease =
        Ingest(target,
               MakeDifferenceProvider(engine_.get(), devices_.get(), target.manifest, std::move(path),
                                      std::make_shared<ScriptedProvider>(std::vector{far})),
               advance, location);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(BytesOf(**lease) == target.image);
    EXPECT_EQ(report_.verified_chunks, kChunks);
  }
  std::vector<std::byte> BytesOf(const ReplicaLease& lease) {
    const uint64_t image_bytes = lease.manifest()->layout().image_bytes;
    if (lease.location().kind == LocationKind::kGpu) {
      return tensorcast::testing::Download(*devices_, lease.memory().device, image_bytes).value();
    }
    std::vector<std::byte> bytes;
    for (const ConstHostSpan span : lease.HostSpans(0, image_bytes)) {
      bytes.insert(bytes.end(), span.begin(), span.end());
    }
    return bytes;
  }
  // Written over the base.
  void AdvanceTo(const TestArtifact& base, const std::vector<TestArtifact>& differences,
                 const TestArtifact& target, const std::shared_ptr<SourceControl>& far) {
    Rebuild(base, differences, target, far,
            std::make_shared<Advance>(base.manifest->id(), /*required=*/true));
    EXPECT_FALSE(Has(base));
  }
  static std::shared_ptr<SourceControl> Far(const TestArtifact& artifact) {
    return MakeControl(artifact.image, {.name = "far", .type = SourceType::kRemote});
  }
  // Of the sources that rebuilt chunks.
  uint32_t RebuiltChunks() const {
    uint32_t chunks = 0;
    for (const SourceReport& source : report_.sources) {
      if (source.source.lane == kDifferenceLane) chunks += source.chunks;
    }
    return chunks;
  }
  // Whether a GPU rebuilt chunks, without the host's memory.
  bool RebuiltOnGpu() const {
    return std::ranges::any_of(report_.sources, [](const SourceReport& source) {
      return source.source.lane == kDifferenceLane && source.direct;
    });
  }
  bool Has(const TestArtifact& artifact, Location location = kCpu) {
    return engine_->LeaseArtifact(artifact.manifest->id(), location).ok();
  }
  void Damage(const TestArtifact& artifact, uint64_t offset) {
    auto lease = engine_->LeaseArtifact(artifact.manifest->id(), kCpu);
    ASSERT_TRUE(lease.ok()) << lease.status();
    *const_cast<std::byte*>((*lease)->HostSpans(offset, 1).front().data()) ^= std::byte{0x10};
  }
  void DamageBaseOnGpu() {
    const auto lease = engine_->LeaseArtifact(base_.manifest->id(), kGpu);
    ASSERT_TRUE(lease.ok()) << lease.status();
    const DevicePtr place = (*lease)->memory().device + 5 * kChunkBytes;
    const std::byte right = base_.image[5 * kChunkBytes];
    ASSERT_TRUE(tensorcast::testing::Upload(*devices_, place, {right ^ std::byte{1}}).ok());
  }

  const RequestContext context_ = RequestContext::Background(absl::Seconds(20));
  const TestArtifact base_ = MakeChunkedArtifact(1, kChunks, kChunkBytes);
  const TestArtifact target_ = NextVersion(base_, 2);
  const TestArtifact difference_ = MakeDifference(base_, target_);
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<StoreEngine> engine_;
  DeviceVerification device_verification_ = DeviceVerification::kFull;
  bool distrust_other_hosts_ = false;
  TransferReport report_;
  int made_wrong_ = 0;  // how often a provider said so
  const std::shared_ptr<DeviceFaults> faults_ = std::make_shared<DeviceFaults>();
  std::shared_ptr<FakeDeviceHooks> hooks_ = HooksOf(faults_);
};

TEST_F(DifferenceSourceTest, WholePath_RebuildsEveryChunkHere) {
  Have(base_);
  Have(difference_);
  const auto far = Far(target_);
  Rebuild(base_, {difference_}, target_, far);
  EXPECT_EQ(RebuiltChunks(), kChunks);
  EXPECT_THAT(far->fetches(), IsEmpty());
  EXPECT_THAT(report_.changes, IsEmpty());
}

TEST_F(DifferenceSourceTest, SeveralVersionsBehind_AreFoldedIntoOnePass) {
  std::vector<TestArtifact> versions = {base_};
  std::vector<TestArtifact> differences;
  Have(base_);
  for (uint64_t step = 1; step <= 8; ++step) {
    versions.push_back(NextVersion(versions.back(), 10 + step));
    differences.push_back(MakeDifference(versions[step - 1], versions[step]));
    Have(differences.back());
  }
  Rebuild(base_, differences, versions.back(), Far(versions.back()));
  EXPECT_EQ(RebuiltChunks(), kChunks);
}

TEST_F(DifferenceSourceTest, ChunksThatDifferenceLeavesOut_ComeFromOthers) {
  const TestArtifact target = NextVersion(base_, 3, /*replaced=*/{4, 9});
  const TestArtifact difference = MakeDifference(base_, target);
  Have(base_);
  Have(difference);
  const auto far = Far(target);
  Rebuild(base_, {difference}, target, far);
  EXPECT_EQ(RebuiltChunks(), kChunks - 2);
  EXPECT_THAT(far->fetches(), UnorderedElementsAre(Key(4U), Key(9U)));
}

TEST_F(DifferenceSourceTest, EvictedBase_TargetComesWholeAndReportSaysWhy) {
  Have(difference_);
  Rebuild(base_, {difference_}, target_, Far(target_));
  EXPECT_EQ(RebuiltChunks(), 0u);
  ASSERT_THAT(report_.changes, SizeIs(1));
  EXPECT_EQ(report_.changes[0].from.lane, kDifferenceLane);
  EXPECT_EQ(report_.changes[0].why, SourceLoss::kNotOpened);
  EXPECT_THAT(report_.changes[0].status.message(), HasSubstr("the base is no longer at cpu"));
}

// Every byte class: the index, the records and the padding between them.
TEST_F(DifferenceSourceTest, DamagedDifference_NeverMakesWrongBytes) {
  const uint64_t bytes = difference_.image.size();
  int dropped = 0;
  for (uint64_t offset = 0; offset < bytes; offset += std::max<uint64_t>(1, bytes / 61)) {
    SetUp();
    Have(base_);
    Have(difference_);
    Damage(difference_, offset);
    Rebuild(base_, {difference_}, target_, Far(target_));
    if (RebuiltChunks() < kChunks && !Has(difference_)) ++dropped;
    EXPECT_TRUE(Has(base_)) << "the difference was wrong, not the base";
  }
  EXPECT_GT(dropped, 0) << "no damage was found";
}

TEST_F(DifferenceSourceTest, DamagedBase_IsDroppedAndTargetIsRight) {
  Have(base_);
  Have(difference_);
  Damage(base_, 5 * kChunkBytes + 100);
  const auto far = Far(target_);
  Rebuild(base_, {difference_}, target_, far);
  EXPECT_THAT(far->fetches(), Contains(Key(5U)));
  EXPECT_FALSE(Has(base_));
  EXPECT_TRUE(Has(difference_));
  EXPECT_EQ(made_wrong_, 0) << "the base has rotted";
}

TEST_F(DifferenceSourceTest, DifferenceMadeOfOtherBytes_IsToldOnce) {
  TestArtifact wrong = MakeDifference(NextVersion(base_, 5), target_);
  Seal(wrong, DifferenceMetadata({.base = base_.manifest->id(), .target = target_.manifest->id()}),
       ArtifactKind::kDifference);
  Have(base_);
  Have(wrong);
  Rebuild(base_, {wrong}, target_, Far(target_));
  EXPECT_EQ(made_wrong_, 1);
  EXPECT_TRUE(Has(base_) && Has(wrong)) << "both are as they were published";
}

TEST_F(DifferenceSourceTest, DifferenceOfAnotherBase_NeverMakesWrongBytes) {
  const TestArtifact other = NextVersion(base_, 77);
  Have(other);
  Have(difference_);
  Rebuild(other, {difference_}, target_, Far(target_));
  EXPECT_LT(RebuiltChunks(), target_.manifest->layout().chunk_count());
  EXPECT_TRUE(Has(other));
  EXPECT_TRUE(Has(difference_));
}

TEST_F(DifferenceSourceTest, AdvancedBase_IsRebuiltInItsOwnMemory) {
  Have(base_);
  Have(difference_);
  const uint64_t before = pool_->stats().used_bytes;
  const auto far = Far(target_);
  AdvanceTo(base_, {difference_}, target_, far);
  EXPECT_EQ(RebuiltChunks(), kChunks);
  EXPECT_THAT(far->fetches(), IsEmpty());
  EXPECT_EQ(pool_->stats().used_bytes, before);
}

TEST_F(DifferenceSourceTest, AdvanceOverSeveralVersions_IsOnePass) {
  const TestArtifact between = NextVersion(base_, 50);
  const TestArtifact last = NextVersion(between, 51);
  const TestArtifact first_step = MakeDifference(base_, between);
  const TestArtifact second_step = MakeDifference(between, last);
  Have(base_);
  Have(first_step);
  Have(second_step);
  AdvanceTo(base_, {first_step, second_step}, last, Far(last));
  EXPECT_EQ(RebuiltChunks(), kChunks);
}

TEST_F(DifferenceSourceTest, AdvanceWithChunksLeftOut_GetsThemFromOthers) {
  const TestArtifact target = NextVersion(base_, 3, /*replaced=*/{4, 9});
  const TestArtifact difference = MakeDifference(base_, target);
  Have(base_);
  Have(difference);
  const auto far = Far(target);
  AdvanceTo(base_, {difference}, target, far);
  EXPECT_EQ(RebuiltChunks(), kChunks - 2);
  EXPECT_THAT(far->fetches(), UnorderedElementsAre(Key(4U), Key(9U)));
}

TEST_F(DifferenceSourceTest, AdvanceOfDamagedBase_EndsWithRightBytes) {
  Have(base_);
  Have(difference_);
  Damage(base_, 5 * kChunkBytes + 100);
  const auto far = Far(target_);
  AdvanceTo(base_, {difference_}, target_, far);
  EXPECT_THAT(far->fetches(), Contains(Key(5U)));
}

TEST_F(DifferenceSourceTest, AdvanceByWrongDifference_EndsWithRightBytes) {
  const TestArtifact other = NextVersion(base_, 77);
  Have(other);
  Have(difference_);
  AdvanceTo(other, {difference_}, target_, Far(target_));
  EXPECT_LT(RebuiltChunks(), kChunks);
}

TEST_F(DifferenceSourceTest, BaseOnGpu_MakesTargetThereAndInHostMemory) {
  for (const Location location : {kGpu, kOtherGpu, kCpu}) {
    SetUp();
    Have(base_, kGpu);
    Have(difference_);
    const auto far = Far(target_);
    Rebuild(base_, {difference_}, target_, far, /*advance=*/nullptr, kGpu, location);
    EXPECT_EQ(RebuiltChunks(), kChunks);
    EXPECT_EQ(RebuiltOnGpu(), location != kCpu);
    EXPECT_THAT(far->fetches(), IsEmpty());
  }
}

TEST_F(DifferenceSourceTest, SeveralVersionsBehindOnGpu_AreAppliedInOrder) {
  const TestArtifact between = NextVersion(base_, 50, /*replaced=*/{}, /*changes=*/600);
  const TestArtifact last = NextVersion(between, 51, /*replaced=*/{}, /*changes=*/600);
  const TestArtifact first_step = MakeDifference(base_, between);
  const TestArtifact second_step = MakeDifference(between, last);
  Have(base_, kGpu);
  Have(first_step);
  Have(second_step);
  Rebuild(base_, {first_step, second_step}, last, Far(last), /*advance=*/nullptr, kGpu, kGpu);
  EXPECT_EQ(RebuiltChunks(), kChunks);
  EXPECT_TRUE(RebuiltOnGpu());
}

// The memory for the lists is a quarter of a chunk, and each change takes three bytes.
TEST_F(DifferenceSourceTest, MoreChangesThanFitInTheLists_AreAppliedInParts) {
  const TestArtifact target = NextVersion(base_, 6, /*replaced=*/{}, /*changes=*/1200);
  const TestArtifact difference = MakeDifference(base_, target);
  Have(base_, kGpu);
  Have(difference);
  const auto far = Far(target);
  Rebuild(base_, {difference}, target, far, /*advance=*/nullptr, kGpu, kGpu);
  EXPECT_EQ(RebuiltChunks(), kChunks);
  EXPECT_THAT(far->fetches(), IsEmpty());
  EXPECT_TRUE(RebuiltOnGpu());
}

TEST_F(DifferenceSourceTest, DamagedDifferenceForGpu_NeverMakesWrongBytes) {
  const uint64_t bytes = difference_.image.size();
  for (uint64_t offset = 0; offset < bytes; offset += std::max<uint64_t>(1, bytes / 23)) {
    SetUp();
    Have(base_, kGpu);
    Have(difference_);
    Damage(difference_, offset);
    Rebuild(base_, {difference_}, target_, Far(target_), /*advance=*/nullptr, kGpu, kGpu);
    EXPECT_TRUE(Has(base_, kGpu)) << "the difference was wrong, not the base";
  }
}

TEST_F(DifferenceSourceTest, GpuWithoutVerification_ComparesWhatItRebuilds) {
  device_verification_ = DeviceVerification::kOff;
  SetUp();
  Have(base_, kGpu);
  Have(difference_);
  DamageBaseOnGpu();
  Rebuild(base_, {difference_}, target_, Far(target_), /*advance=*/nullptr, kGpu, kGpu);
  EXPECT_FALSE(Has(base_, kGpu));
}

TEST_F(DifferenceSourceTest, GpuThatFailsToRebuild_LeavesItToTheHost) {
  Have(base_, kGpu);
  Have(difference_);
  faults_->fail_copies = 1;
  Rebuild(base_, {difference_}, target_, Far(target_), /*advance=*/nullptr, kGpu, kGpu);
  EXPECT_EQ(faults_->fail_copies, 0);
  EXPECT_EQ(RebuiltChunks(), kChunks);
  EXPECT_TRUE(Has(base_, kGpu));
  EXPECT_EQ(made_wrong_, 0);
}

TEST_F(DifferenceSourceTest, GpuThatChangesWrong_IsNotBlamedOnTheDifference) {
  hooks_ = std::make_shared<SpoilsChanges>();
  SetUp();
  Have(base_, kGpu);
  Have(difference_);
  Rebuild(base_, {difference_}, target_, Far(target_), /*advance=*/nullptr, kGpu, kGpu);
  EXPECT_LT(RebuiltChunks(), kChunks);
  EXPECT_EQ(made_wrong_, 0);
  EXPECT_TRUE(Has(base_, kGpu) && Has(difference_)) << "both are as they were published";
}

// A GPU computes no BLAKE3.
TEST_F(DifferenceSourceTest, DistrustedDifference_IsAppliedOnTheHost) {
  distrust_other_hosts_ = true;
  SetUp();
  Have(base_, kGpu);
  Have(difference_);
  Rebuild(base_, {difference_}, target_, Far(target_), /*advance=*/nullptr, kGpu, kGpu);
  EXPECT_EQ(RebuiltChunks(), kChunks);
  EXPECT_FALSE(RebuiltOnGpu());
}

TEST_F(DifferenceSourceTest, BaseInHostMemory_MakesTargetOnGpu) {
  Have(base_);
  Have(difference_);
  Rebuild(base_, {difference_}, target_, Far(target_), /*advance=*/nullptr, kCpu, kGpu);
  EXPECT_EQ(RebuiltChunks(), kChunks);
}

TEST_F(DifferenceSourceTest, DamagedBaseOnGpu_IsDroppedAndTargetIsRight) {
  Have(base_, kGpu);
  Have(difference_);
  DamageBaseOnGpu();
  const auto far = Far(target_);
  Rebuild(base_, {difference_}, target_, far, /*advance=*/nullptr, kGpu, kGpu);
  EXPECT_TRUE(RebuiltOnGpu());
  EXPECT_THAT(far->fetches(), Contains(Key(5U)));
  EXPECT_FALSE(Has(base_, kGpu));
  EXPECT_EQ(made_wrong_, 0) << "the base has rotted";
}

TEST_F(DifferenceSourceTest, UnusedPath_IsNamedInTheReport) {
  DifferencePath path{.base_id = base_.manifest->id(),
                      .unused = absl::ResourceExhaustedError("there is no room")};
  auto lease =
      Ingest(target_, MakeDifferenceProvider(engine_.get(), devices_.get(), target_.manifest, std::move(path),
                                             std::make_shared<ScriptedProvider>(std::vector{Far(target_)})));
  ASSERT_TRUE(lease.ok()) << lease.status();
  ASSERT_THAT(report_.changes, SizeIs(1));
  EXPECT_EQ(report_.changes[0].status, absl::ResourceExhaustedError("there is no room"));
}

}  // namespace
}  // namespace tensorcast::daemon
