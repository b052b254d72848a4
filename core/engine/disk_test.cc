// Replicas that come from others of the same node, and the disk tier across restarts.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "base/steady_time.h"
#include "core/engine/engine_fixture.h"
#include "gmock/gmock.h"

namespace tensorcast::testing::disk_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class EngineLocal : public EngineFixture {
 protected:
  const TestArtifact artifact_ = MakeTestArtifact(1, {20000, 5, 3000}, 4096);

  // Flips one byte of the packed file's image.
  void CorruptFile() {
    auto file = store_->Find(artifact_.manifest->id());
    ASSERT_TRUE(file.ok()) << file.status();
    const int descriptor = open((*file)->path().c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(descriptor, 0);
    const std::byte wrong = artifact_.image[5000] ^ std::byte{1};
    ASSERT_EQ(pwrite(descriptor, &wrong, 1, static_cast<off_t>((*file)->image_offset() + 5000)), 1);
    ASSERT_EQ(close(descriptor), 0);
  }

  // Descriptors of this process that are of a file once at `path`, and keep its space.
  static std::vector<std::string> RemovedFilesStillOpen(const std::string& path) {
    std::vector<std::string> open;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;  // the one of the iterator itself is gone
      const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
      if (target.starts_with(path) && target.ends_with(" (deleted)")) open.push_back(target);
    }
    return open;
  }
};

TEST_F(EngineLocal, LocalReplica_IsUsedBeforeOtherSources) {
  Start();
  MustGet(artifact_, kCpu);
  struct Case {
    Location destination;
    const char* lane;
    SourceType type;
  };
  for (const Case& test :
       {Case{kGpu, "memory", SourceType::kLocal}, Case{kDisk, "memory", SourceType::kLocal}}) {
    auto provider = ProviderOf({});
    auto lease = Get(artifact_, test.destination, provider);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_TRUE(Read(**lease) == artifact_.image);
    EXPECT_EQ(provider->calls(), 0);
    const TransferReport report = listener_->reports().back();
    EXPECT_EQ(report.stages[0].source.lane, test.lane);
    EXPECT_EQ(report.stages[0].source.type, test.type);
    EXPECT_EQ(report.verified_chunks, artifact_.layout.chunk_count());
  }
}

TEST_F(EngineLocal, DeviceOrDiskReplica_IsSourceForOtherLocations) {
  Start();
  for (const Location source : {kGpu, kDisk}) {
    for (const Location destination : {kCpu, kGpu, kDisk, Location{LocationKind::kGpu, 1}}) {
      if (source == destination) continue;
      ASSERT_TRUE(engine_->Forget(artifact_.manifest->id(), SteadyTime::InfiniteFuture()).ok());
      MustGet(artifact_, source);
      auto lease = Get(artifact_, destination);
      ASSERT_TRUE(lease.ok()) << source.ToString() << " to " << destination.ToString() << ": "
                              << lease.status();
      EXPECT_TRUE(Read(**lease) == artifact_.image);
    }
  }
}

TEST_F(EngineLocal, SourceLease_EndsWithTheIngest) {
  Start();
  MustGet(artifact_, kCpu);
  ASSERT_TRUE(Get(artifact_, kGpu).ok());
  WaitUntilIdle();
  for (const ReplicaInfo& replica : engine_->ListReplicas()) {
    EXPECT_EQ(replica.leases, 0u) << replica.location.ToString();
  }
}

TEST_F(EngineLocal, PackedFile_IsReadyReplicaAfterRestart) {
  Start();
  const std::string before = MustGet(artifact_, kDisk)->replica_id();
  Restart();
  ASSERT_THAT(engine_->ListReplicas(), SizeIs(1));
  const ReplicaInfo replica = engine_->ListReplicas()[0];
  EXPECT_EQ(replica.artifact_id, artifact_.manifest->id());
  EXPECT_EQ(replica.location, kDisk);
  EXPECT_EQ(replica.state, ReplicaState::kReady);
  EXPECT_EQ(replica.chunks_present, replica.chunks_total);
  EXPECT_NE(replica.id, before);
  listener_->WaitForState(replica.id, ReplicaState::kReady);
  auto lease = Get(artifact_, kCpu);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == artifact_.image);
}

TEST_F(EngineLocal, RemovedPackedFile_IsNotACopyAndIsWrittenAnewOnRequest) {
  Start();
  MustGet(artifact_, kCpu);
  const std::string first = MustGet(artifact_, kDisk)->replica_id();
  const std::string path = (*store_->Find(artifact_.manifest->id()))->path();
  std::filesystem::remove(path);
  const std::string second = MustGet(artifact_, kDisk)->replica_id();
  EXPECT_NE(second, first);
  EXPECT_TRUE(std::filesystem::exists(path));

  engine_->DropLostFiles();
  EXPECT_THAT(engine_->ListReplicas(), SizeIs(2)) << "it is there";
  std::filesystem::copy_file(path, path + ".copy");
  std::filesystem::rename(path + ".copy", path);
  engine_->DropLostFiles();
  ASSERT_THAT(engine_->ListReplicas(), SizeIs(1));
  EXPECT_EQ(engine_->ListReplicas()[0].location, kCpu);
  listener_->WaitForState(second, ReplicaState::kGone);
  EXPECT_TRUE(std::filesystem::exists(path)) << "what another process put in its place stays";
  EXPECT_THAT(RemovedFilesStillOpen(path), IsEmpty());
  EXPECT_EQ(store_->Usage().used_bytes, 0u);
}

TEST_F(EngineLocal, CorruptPackedFile_IsWithdrawnAndFetchedElsewhere) {
  Start();
  MustGet(artifact_, kDisk);
  CorruptFile();
  auto provider = GoodProvider(artifact_);
  auto lease = Get(artifact_, kCpu, provider);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_TRUE(Read(**lease) == artifact_.image);
  EXPECT_EQ(provider->calls(), 1);
  EXPECT_THAT(provider->failures(), IsEmpty())
      << "the provider is asked for a first source, not blamed for ours";
  EXPECT_EQ(engine_->LeaseArtifact(artifact_.manifest->id(), kDisk).status().code(),
            absl::StatusCode::kNotFound);
  const std::vector<DamagedFile> damaged = store_->Damaged();
  ASSERT_EQ(damaged.size(), 1);
  EXPECT_EQ(damaged[0].artifact_id, artifact_.manifest->id());
  EXPECT_TRUE(absl::IsNotFound(store_->Find(artifact_.manifest->id()).status())) << "it is not a copy";
  auto rewritten = Get(artifact_, kDisk);
  ASSERT_TRUE(rewritten.ok()) << rewritten.status();
  EXPECT_TRUE(Read(**rewritten) == artifact_.image) << "packing it anew heals it";
  EXPECT_THAT(store_->Damaged(), IsEmpty());
}

TEST_F(EngineLocal, CorruptOnlySource_FailsIngestWithDataLoss) {
  Start();
  MustGet(artifact_, kDisk);
  CorruptFile();
  const absl::Status status = Get(artifact_, kCpu).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("digest"));
}

TEST_F(EngineLocal, EvictedDiskReplica_LosesFileAndStaysReadableByHolder) {
  Start();
  auto lease = MustGet(artifact_, kDisk);
  EXPECT_TRUE(engine_->Evict(lease->replica_id(), false).ok());
  EXPECT_THAT(store_->List(), IsEmpty());
  EXPECT_TRUE(Read(*lease) == artifact_.image);
  auto again = Get(artifact_, kDisk, GoodProvider(artifact_));
  ASSERT_TRUE(again.ok()) << again.status();
  lease.reset();
  EXPECT_THAT(store_->List(), SizeIs(1)) << "the old replica's end does not take the new file";
  EXPECT_TRUE(Read(**again) == artifact_.image);
}

}  // namespace
}  // namespace tensorcast::testing::disk_test
