#include "daemon/service/archiver.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/disk/import_verifier.h"
#include "core/disk/packed_format.h"
#include "daemon/service/service_fixture.h"
#include "daemon/sources/origin_files.h"
#include "objects/open.h"
#include "objects/testing/fake_s3.h"
#include "rpc/convert/convert.h"

namespace tensorcast::archiver_test {
namespace {

using daemon::Archiver;
using daemon::Ingester;
using daemon::ServiceTest;
using objects::testing::FakeReply;
using objects::testing::FakeRequest;
using objects::testing::FakeS3;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kPlace[] = "s3://bucket/packs/";
constexpr char kCluster[] = "cluster-a";

// A node that archives to a store in this process, in parts of 1 MiB.
class ArchiverTest : public ServiceTest {
 public:
  void SetUp() override {
    ServiceTest::SetUp();
    archiver_ = MakeArchiver(kCluster);
    Ingester::Options options = IngesterOptions();
    options.archiver = archiver_.get();
    options.objects = objects_ = OpenStore();
    ingester = std::make_unique<Ingester>(options);
  }

 protected:
  objects::Environment EnvironmentOf() const {
    return [url = s3_.url()](std::string_view name) -> std::string {
      if (name == "AWS_ENDPOINT_URL") return url;
      if (name == "AWS_ACCESS_KEY_ID") return "KEY";
      if (name == "AWS_SECRET_ACCESS_KEY") return "secret";
      return "";
    };
  }
  std::shared_ptr<const ObjectStore> OpenStore() const {
    objects::OpenOptions open;
    open.environment = EnvironmentOf();
    open.files = imports;
    return objects::OpenObjects(std::move(open));
  }
  std::unique_ptr<Archiver> MakeArchiver(const std::string& cluster_id) {
    objects::S3Options client;
    client.endpoint = s3_.url();
    client.credentials = std::make_shared<objects::FixedCredentials>(
        objects::Credentials{.access_key_id = "KEY", .secret_access_key = objects::Secret("secret")});
    const auto http = std::make_shared<objects::HttpClient>(
        objects::HttpOptions{.limits = {.attempts = 2, .first_pause = absl::Milliseconds(1)}});
    objects::S3Writer::Options parts;
    parts.part_bytes = 1 << 20;
    Archiver::Options options;
    options.places = {kPlace, "s3://bucket/models"};
    options.writer =
        std::make_shared<objects::S3Writer>(std::make_shared<objects::S3Client>(http, client), parts);
    options.writable = *objects::Origins::Parse(options.places);
    options.node_id = "me";
    options.cluster_id = [cluster_id] { return cluster_id; };
    options.engine = engine.get();
    options.global_store = &store;
    return std::make_unique<Archiver>(std::move(options));
  }
  absl::StatusOr<v1::PutArtifactResult> Archive(const std::string& path, const std::string& place = kPlace) {
    v1::ImportArtifactRequest request;
    request.set_path(path);
    request.set_archive(place);
    return ingester->Import(context, request, /*asking=*/"", nullptr);
  }
  v1::CollectArchivesResponse Collect(const Archiver& archiver, absl::Duration min_age,
                                      bool dry_run = false) {
    v1::CollectArchivesRequest request;
    *request.mutable_min_age() = rpc::ToProto(min_age);
    request.set_dry_run(dry_run);
    auto collected = archiver.Collect(context, request);
    EXPECT_TRUE(collected.ok()) << collected.status();
    return collected.value_or(v1::CollectArchivesResponse());
  }
  int Writes() {
    const std::vector<FakeRequest> requests = s3_.server().requests();
    return static_cast<int>(std::ranges::count(requests, "PUT", &FakeRequest::method));
  }
  // Of these models all but the bytes are the same.
  std::string ModelBytes(char fill) {
    testing::TestArtifact other = artifact;
    for (const Tensor& tensor : other.layout.tensors) {
      std::memset(other.image.data() + tensor.offset, fill, tensor.nbytes);
    }
    const std::string path = absl::StrCat(folder, "/model-", static_cast<int>(fill));
    EXPECT_TRUE(WriteSafetensors(path, other.layout, {}, other.image).ok());
    auto found = ImportRoots::Everything().Find(context, path);
    EXPECT_TRUE(found.ok()) << found.status();
    return ReadBytes(context, *found->object, 0, found->object->identity().bytes).value_or("");
  }

  std::atomic<bool> fails_ = false;  // parts beyond the first, and aborts
  std::atomic<bool> manifest_fails_ = false;
  FakeS3 s3_{
      {.keys = objects::Credentials{.access_key_id = "KEY", .secret_access_key = objects::Secret("secret")},
       .first = [this](const FakeRequest& request) -> std::optional<FakeReply> {
         const bool multipart = !request.Query("uploadId").empty() && request.method != "POST";
         if (fails_ && multipart && request.Query("partNumber") != "1") return FakeReply{.status = 403};
         if (manifest_fails_ && request.method == "PUT" && absl::EndsWith(request.path, ".tcmanifest")) {
           return FakeReply{.status = 403};
         }
         return std::nullopt;
       }}};
  std::unique_ptr<Archiver> archiver_;
  std::shared_ptr<const ObjectStore> objects_;
};

TEST_F(ArchiverTest, ArchivedPut_IsReadBackFromItsPack) {
  const auto put = Archive(WriteModel("m.safetensors"));
  ASSERT_TRUE(put.ok()) << put.status();
  const std::string stem = absl::StrCat("packs/", kCluster, "/tc2-", put->artifact_id().substr(4));
  EXPECT_THAT(s3_.keys(), ElementsAre(stem + ".tcmanifest", stem + ".tcpack"));
  EXPECT_EQ(s3_.uploads(), 0);
  ASSERT_THAT(store.published, SizeIs(2)) << "the artifact, then its archive as an origin";
  EXPECT_EQ(store.published[1].first, put->artifact_id());
  const Origin origin = rpc::FromProto(store.published[1].second.origin());
  ASSERT_THAT(origin.objects, SizeIs(1));
  EXPECT_EQ(origin.objects[0].uri, absl::StrCat("s3://bucket/", stem, ".tcpack"));

  auto lease = engine->LeaseReplica(put->replica().replica_id());
  ASSERT_TRUE(lease.ok()) << lease.status();
  const Manifest& manifest = *(*lease)->manifest();
  EXPECT_EQ(s3_.Find(stem + ".tcmanifest"), manifest.bytes());
  const auto source = daemon::OpenOriginSource(context, *objects_, origin, manifest);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto different = FindDifferentChunk(context, **source, manifest);
  ASSERT_TRUE(different.ok()) << different.status();
  EXPECT_EQ(*different, std::nullopt);
}

TEST_F(ArchiverTest, Pack_IsAPackedFileOfTheDiskTier) {
  const auto put = Archive(WriteModel("m.safetensors"));
  ASSERT_TRUE(put.ok()) << put.status();
  const std::string name = PackedFileName(put->artifact_id());
  const auto pack = s3_.Find(absl::StrCat("packs/", kCluster, "/", name));
  ASSERT_TRUE(pack.has_value());
  const std::string other_folder = folder + "/other-node";
  std::filesystem::create_directories(other_folder);
  std::ofstream(absl::StrCat(other_folder, "/", name), std::ios::binary) << *pack;
  const auto disk_tier = ArtifactStore::Open(other_folder);
  ASSERT_TRUE(disk_tier.ok()) << disk_tier.status();
  EXPECT_TRUE((*disk_tier)->Find(put->artifact_id()).ok());
}

TEST_F(ArchiverTest, ArchivedArtifact_IsNotWrittenAgain) {
  const std::string path = WriteModel("m.safetensors");
  ASSERT_TRUE(Archive(path).ok());
  const int writes = Writes();
  EXPECT_GT(writes, 3) << "the parts and the manifest";
  const auto again = Archive(path, "s3://bucket/packs");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Writes(), writes);
}

TEST_F(ArchiverTest, GpuReplica_IsArchivedThroughHostMemory) {
  v1::ImportArtifactRequest request;
  request.set_path(WriteModel("m.safetensors"));
  request.set_archive(kPlace);
  *request.mutable_location() = rpc::ToProto(*Location::Parse("gpu:0"));
  const auto put = ingester->Import(context, request, "", nullptr);
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_THAT(s3_.keys(), SizeIs(2));
}

TEST_F(ArchiverTest, UnlistedPlace_IsRefusedBeforeReading) {
  const std::string path = WriteModel("m.safetensors");
  for (const char* const place : {"s3://bucket/other", "s3://bucket/packs/below", "s3://other/packs"}) {
    const absl::Status refused = Archive(path, place).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << place;
    EXPECT_THAT(refused.message(), HasSubstr("daemon.archives"));
  }
  Ingester::Options options = IngesterOptions();
  v1::ImportArtifactRequest request;
  request.set_path(path);
  request.set_archive(kPlace);
  EXPECT_EQ(Ingester(options).Import(context, request, "", nullptr).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(store.published, IsEmpty());
  EXPECT_THAT(s3_.server().requests(), IsEmpty());
}

TEST_F(ArchiverTest, UnknownCluster_IsRefusedBeforeReading) {
  const auto nameless = MakeArchiver("");
  EXPECT_EQ(nameless->CheckPlace(kPlace).code(), absl::StatusCode::kUnavailable);
}

TEST_F(ArchiverTest, FailedUpload_LeavesTheArtifactStoredAndSaysSo) {
  const std::string path = WriteModel("m.safetensors");
  manifest_fails_ = true;
  const absl::Status failed = Archive(path).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(failed.message(), HasSubstr("is stored, but is not archived"));
  EXPECT_THAT(store.published, SizeIs(1));
  EXPECT_THAT(s3_.keys(), SizeIs(1)) << "a pack without its manifest";
  manifest_fails_ = false;
  ASSERT_TRUE(Archive(path).ok());
  EXPECT_THAT(s3_.keys(), SizeIs(2));
}

TEST_F(ArchiverTest, LeftUpload_IsEndedByCollect) {
  fails_ = true;
  EXPECT_THAT(Archive(WriteModel("m.safetensors")).status().message(), HasSubstr("with `tensorcast gc`"));
  EXPECT_EQ(s3_.uploads(), 1);
  fails_ = false;
  EXPECT_THAT(Collect(*archiver_, absl::Hours(1)).ended_uploads(), IsEmpty()) << "it may be another node's";
  EXPECT_THAT(Collect(*MakeArchiver("cluster-b"), absl::ZeroDuration()).ended_uploads(), IsEmpty());
  EXPECT_THAT(Collect(*archiver_, absl::ZeroDuration(), /*dry_run=*/true).ended_uploads(), SizeIs(1));
  EXPECT_EQ(s3_.uploads(), 1);
  EXPECT_THAT(Collect(*archiver_, absl::ZeroDuration()).ended_uploads(), ElementsAre(HasSubstr(kCluster)));
  EXPECT_EQ(s3_.uploads(), 0);
}

TEST_F(ArchiverTest, TwoClustersInOnePlace_CollectOnlyTheirOwn) {
  const auto put = Archive(WriteModel("m.safetensors"));
  ASSERT_TRUE(put.ok()) << put.status();
  const auto other = MakeArchiver("cluster-b");
  auto lease = engine->LeaseReplica(put->replica().replica_id());
  ASSERT_TRUE(lease.ok()) << lease.status();
  ASSERT_TRUE(other->Archive(context, **lease, kPlace).ok());
  s3_.Put(absl::StrCat("packs/", kCluster, "/notes.txt"), "of a person");
  s3_.Put("packs/tc2-x.tcpack", "of another program");
  EXPECT_THAT(s3_.keys(), SizeIs(6));
  EXPECT_THAT(Collect(*archiver_, absl::ZeroDuration()).removed_objects(), IsEmpty()) << "it is known";

  store.With([&](daemon::FakeGlobalStore& it) { it.deleted.insert(put->artifact_id()); });
  EXPECT_THAT(Collect(*archiver_, absl::Hours(1)).removed_objects(), IsEmpty());
  EXPECT_THAT(Collect(*archiver_, absl::ZeroDuration(), /*dry_run=*/true).removed_objects(), SizeIs(2));
  EXPECT_THAT(s3_.keys(), SizeIs(6));
  EXPECT_THAT(Collect(*archiver_, absl::ZeroDuration()).removed_objects(),
              ElementsAre(HasSubstr(".tcmanifest"), HasSubstr(".tcpack")));
  EXPECT_THAT(s3_.keys(), AllOf(SizeIs(4), Not(Contains(AllOf(HasSubstr(kCluster), HasSubstr("tc2-"))))));
}

TEST_F(ArchiverTest, CollectWithoutTheGlobalStore_RemovesNothing) {
  ASSERT_TRUE(Archive(WriteModel("m.safetensors")).ok());
  store.With([](daemon::FakeGlobalStore& it) { it.down = absl::UnavailableError("away"); });
  EXPECT_EQ(archiver_->Collect(context, {}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(s3_.keys(), SizeIs(2));
}

TEST_F(ArchiverTest, ManifestBesideModel_RefusesOtherBytes) {
  s3_.Put("models/m.safetensors", ModelBytes('a'));
  v1::ImportArtifactRequest request;
  request.set_path("s3://bucket/models/m.safetensors");
  request.set_manifest_beside(true);
  const auto put = ingester->Import(context, request, "", nullptr);
  ASSERT_TRUE(put.ok()) << put.status();
  const auto manifest = s3_.Find("models/m.tcmanifest");
  ASSERT_TRUE(manifest.has_value());
  EXPECT_EQ(ArtifactId(*manifest), put->artifact_id());
  request.set_manifest_beside(false);
  EXPECT_TRUE(ingester->Import(context, request, "", nullptr).ok());

  s3_.Put("models/m.safetensors", ModelBytes('b'));
  const size_t published = store.published.size();
  const absl::Status refused = ingester->Import(context, request, "", nullptr).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("models/m.tcmanifest"), HasSubstr("chunk 0")));
  s3_.Put("models/m.tcmanifest", "damaged");
  EXPECT_THAT(ingester->Import(context, request, "", nullptr).status().message(),
              HasSubstr("models/m.tcmanifest"));
  EXPECT_THAT(store.published, SizeIs(published));
}

TEST_F(ArchiverTest, ManifestOutsideArchives_IsRefusedBeforeReading) {
  s3_.Put("others/m.safetensors", ModelBytes('a'));
  v1::ImportArtifactRequest request;
  request.set_path("s3://bucket/others/m.safetensors");
  request.set_manifest_beside(true);
  EXPECT_EQ(ingester->Import(context, request, "", nullptr).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(s3_.server().requests(), IsEmpty());
}

}  // namespace
}  // namespace tensorcast::archiver_test
