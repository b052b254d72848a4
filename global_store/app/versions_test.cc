// A training loop's versions over real sockets and a real database.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "global_store/app/global_store_fixture.h"

namespace tensorcast::global_store::versions_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class VersionsTest : public GlobalStoreServerTest {
 protected:
  // Which version it is, is in the manifest's metadata; its tensors make it as large as a model's.
  static std::shared_ptr<const Manifest> Version(int number) {
    return SomeManifest(absl::StrCat(number), /*tensors=*/100);
  }
  static std::string ReplicaOf(int number) { return absl::StrCat("r", number); }
  absl::StatusOr<v1::PublishArtifactResponse> Put(int number, std::optional<uint32_t> keep = std::nullopt) {
    const auto manifest = Version(number);
    v1::PublishArtifactRequest first;
    *first.mutable_node() = Identity("a");
    *first.mutable_replica() = SomeReplica(ReplicaOf(number), manifest->id());
    first.set_key("policy");
    if (keep.has_value()) first.set_keep(*keep);
    return PublishBytes(manifest->bytes(), first);
  }
  absl::StatusOr<v1::RequestEvictionResponse> Evict(int number) {
    v1::RequestEvictionRequest request;
    *request.mutable_node() = Identity("a");
    request.set_replica_id(ReplicaOf(number));
    return Call(&Stub::RequestEviction, request);
  }
  void Report(int number, v1::ReplicaState state) {
    v1::UpdateReplicasRequest request;
    *request.mutable_node() = Identity("a");
    request.set_sequence(++sequence_);
    *request.add_replicas() = SomeReplica(ReplicaOf(number), Version(number)->id());
    request.mutable_replicas(0)->set_state(state);
    ASSERT_TRUE(Call(&Stub::UpdateReplicas, request).ok());
  }
  uintmax_t DatabaseBytes() const { return std::filesystem::file_size(folder_ / "metadata.db"); }

  uint64_t sequence_ = 0;
};

TEST_F(VersionsTest, Restart_KnowsWhichVersionsAreKept) {
  Register("a");
  for (int number = 1; number <= 5; ++number) {
    ASSERT_TRUE(Put(number, number == 1 ? std::optional<uint32_t>(3) : std::nullopt).ok());
  }
  const v1::Key before = *Resolve("policy");
  ASSERT_THAT(before.earlier(), SizeIs(2));
  EXPECT_EQ(before.keep(), 3u);
  Restart();
  EXPECT_EQ(Resolve("policy")->SerializeAsString(), before.SerializeAsString());
  Register("a");
  for (int number = 1; number <= 5; ++number) Report(number, v1::REPLICA_STATE_READY);
  for (const int number : {1, 2}) {
    const auto granted = Evict(number);
    ASSERT_TRUE(granted.ok()) << granted.status();
    EXPECT_TRUE(granted->granted()) << number << ": " << granted->reason();
    EXPECT_TRUE(absl::IsNotFound(Describe(Version(number)->id()).status()));
  }
  for (const int number : {3, 4, 5}) EXPECT_FALSE(Evict(number)->granted()) << number;
  EXPECT_THAT(Evict(3)->reason(), HasSubstr("key policy"));
  EXPECT_THAT(Describe(Version(3)->id())->first.kept_by(), ElementsAre("policy"));
  Restart();
  EXPECT_TRUE(absl::IsNotFound(Describe(Version(1)->id()).status())) << "it went for good";
  EXPECT_TRUE(Describe(Version(3)->id()).ok());
}

// The size of the database after many versions is that after few.
// More with TENSORCAST_VERSIONS=10000. The answers of an hour are kept, which are 720 versions here, so the
// second half must not add to the first.
TEST_F(VersionsTest, ManyVersions_LeaveTheMetadataBounded) {
  const char* const wanted = std::getenv("TENSORCAST_VERSIONS");
  const int versions = wanted == nullptr ? 1600 : std::atoi(wanted);
  options_.heartbeat_interval = absl::Milliseconds(100);  // the periodic task runs often
  Restart();
  Register("a");
  uintmax_t bytes_halfway = 0;
  for (int number = 1; number <= versions; ++number) {
    ASSERT_TRUE(Put(number).ok());
    if (number > 2) {
      const auto granted = Evict(number - 2);
      ASSERT_TRUE(granted.ok() && granted->granted()) << granted.status();
      Report(number - 2, v1::REPLICA_STATE_GONE);
    }
    Pass(absl::Seconds(5));
    ASSERT_TRUE(Beat("a").ok());
    if (number == versions / 2) bytes_halfway = DatabaseBytes();
  }
  const auto status = Call(&Stub::GetClusterStatus, v1::GetClusterStatusRequest());
  EXPECT_EQ(status->artifacts(), 2u);
  EXPECT_EQ(status->replicas(), 2u);
  RecordProperty("manifest_bytes", static_cast<int>(Version(1)->bytes().size()));
  RecordProperty("database_bytes_halfway", static_cast<int>(bytes_halfway));
  RecordProperty("database_bytes", static_cast<int>(DatabaseBytes()));
  EXPECT_LT(DatabaseBytes(), bytes_halfway * 3 / 2);
  // Tombstones, and the answers of the last hour.
  EXPECT_LT(DatabaseBytes(), uintmax_t{4} << 20);
}

}  // namespace
}  // namespace tensorcast::global_store::versions_test
