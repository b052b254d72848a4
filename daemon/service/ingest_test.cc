#include "daemon/service/ingest.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/status.h"
#include "core/handles/handle_client.h"
#include "daemon/service/service_fixture.h"

namespace tensorcast::daemon::ingest_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class IngestTest : public ServiceTest {
 protected:
  std::vector<std::string> Locations() const {
    std::vector<std::string> locations;
    for (const ReplicaInfo& replica : engine->ListReplicas()) {
      locations.push_back(replica.location.ToString());
    }
    return locations;
  }
};

TEST_F(IngestTest, Import_IsPublishedWithKeyAndOrigin) {
  const std::string path = WriteModel("m.safetensors");
  const auto result = Import(path, "model");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->replica().node_id(), "me");
  EXPECT_EQ(result->key_revision(), 1);
  EXPECT_THAT(Locations(), UnorderedElementsAre("cpu"));
  ASSERT_THAT(store.published, SizeIs(1));
  const auto& [artifact_id, published] = store.published[0];
  EXPECT_EQ(artifact_id, result->artifact_id());
  EXPECT_EQ(published.key(), "model");
  EXPECT_EQ(published.replica().replica_id(), result->replica().replica_id());
  EXPECT_EQ(published.origin().node_id(), "me");
  ASSERT_EQ(published.origin().objects_size(), 1);
  EXPECT_THAT(published.origin().objects(0).uri(), HasSubstr("m.safetensors"));
}

// A folder of a model, with two files beside the tensors.
class FolderImportTest : public IngestTest {
 protected:
  void SetUp() override {
    IngestTest::SetUp();
    std::filesystem::create_directories(path_ + "/sub");
    WriteModel("m/model.safetensors");
    std::ofstream(path_ + "/config.json") << "{}";
    std::ofstream(path_ + "/sub/vocab.txt") << "a b";
    std::ofstream(path_ + "/old.bin") << "weights";
  }

  const std::string path_ = folder + "/models/m";
};

TEST_F(FolderImportTest, FolderWithKey_BindsItsFilesWithTheTensors) {
  const auto result = Import(path_, "model", /*durable=*/true);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_THAT(store.published, SizeIs(2));
  const auto& [files_id, files] = store.published[0];  // first, since the binding names them
  EXPECT_EQ(files.key(), "");
  EXPECT_EQ(files.origin().objects_size(), 2);
  EXPECT_EQ(store.published[1].first, result->artifact_id());
  EXPECT_EQ(store.published[1].second.key(), "model");
  EXPECT_EQ(store.published[1].second.files_id(), files_id);
  EXPECT_EQ(result->files_id(), files_id);
  EXPECT_THAT(Locations(), UnorderedElementsAre("cpu", "disk", "cpu", "disk"));
  const auto manifest = engine->FindManifest(files_id);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ((*manifest)->kind(), ArtifactKind::kFiles);
  EXPECT_NE((*manifest)->Find("config.json"), nullptr);
  EXPECT_NE((*manifest)->Find("sub/vocab.txt"), nullptr);
  EXPECT_EQ((*manifest)->layout().tensors.size(), 2u);
  store.With([](FakeGlobalStore& it) { it.down = absl::UnavailableError("away"); });
  const auto known = known_keys->Resolve(context, "model");
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ(known->key().files_id(), files_id);
}

TEST_F(FolderImportTest, FolderWithoutKeyOrWithNoFiles_IsTensorsAlone) {
  const auto unbound = Import(path_);
  ASSERT_TRUE(unbound.ok()) << unbound.status();
  v1::ImportArtifactRequest request;
  request.set_path(path_);
  request.set_no_files(true);
  request.mutable_binding()->set_key("model");
  const auto result = ingester->Import(context, request, "", nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->artifact_id(), unbound->artifact_id());
  ASSERT_THAT(store.published, SizeIs(2));
  EXPECT_EQ(store.published[1].second.files_id(), "");
}

TEST_F(IngestTest, BoundKey_IsKnownWhenGlobalStoreIsAway) {
  const auto result = Import(WriteModel("m.safetensors"), "model");
  ASSERT_TRUE(result.ok()) << result.status();
  store.With([](FakeGlobalStore& it) { it.down = absl::UnavailableError("away"); });
  const auto resolved = known_keys->Resolve(context, "model");
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->key().artifact_id(), result->artifact_id());
  EXPECT_TRUE(resolved->unconfirmed());
}

TEST_F(IngestTest, DurableImport_IsPackedBeforePublishing) {
  const auto result = Import(WriteModel("m.safetensors"), "", /*durable=*/true);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(Locations(), UnorderedElementsAre("cpu", "disk"));
  EXPECT_TRUE(artifact_store->Find(result->artifact_id()).ok());
}

TEST_F(IngestTest, PinnedImport_PinsItsReplicaOnceItIsPublished) {
  v1::ImportArtifactRequest request;
  request.set_path(WriteModel("m.safetensors"));
  request.set_pin(true);
  store.With([](FakeGlobalStore& it) { it.down = absl::FailedPreconditionError("another revision"); });
  EXPECT_FALSE(ingester->Import(context, request, "", nullptr).ok());
  EXPECT_THAT(Locations(), IsEmpty());
  store.With([](FakeGlobalStore& it) { it.down = absl::OkStatus(); });
  const auto result = ingester->Import(context, request, "", nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->replica().pinned());
  ASSERT_THAT(engine->ListReplicas(), SizeIs(1));
  EXPECT_TRUE(engine->ListReplicas()[0].pinned);
}

TEST_F(IngestTest, FailedPublish_LeavesNoReplica) {
  store.down = absl::UnavailableError("away");
  EXPECT_EQ(Import(WriteModel("m.safetensors"), "", /*durable=*/true).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_THAT(Locations(), IsEmpty());
}

TEST_F(IngestTest, FailedPublish_KeepsReplicaThatExistedBefore) {
  const std::string path = WriteModel("m.safetensors");
  ASSERT_TRUE(Import(path).ok());
  store.With([](FakeGlobalStore& it) { it.down = absl::FailedPreconditionError("another revision"); });
  EXPECT_EQ(Import(path, "model").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Locations(), UnorderedElementsAre("cpu"));
}

TEST_F(IngestTest, ImportOutsideImportRoots_IsDenied) {
  const std::string outside = folder + "/outside.safetensors";
  ASSERT_TRUE(WriteSafetensors(outside, artifact.layout, {}, artifact.image).ok());
  const absl::Status refused = Import(outside).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  const absl::Status absent = Import(folder + "/models/absent.safetensors").status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(IngestTest, InvalidImport_IsRefusedBeforeReading) {
  const std::string path = WriteModel("m.safetensors");
  v1::ImportArtifactRequest nameless;
  nameless.set_path(path);
  nameless.mutable_binding();
  EXPECT_EQ(ingester->Import(context, nameless, "", nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  Ingester::Options without_disk = IngesterOptions();
  without_disk.disk_tier = false;
  v1::ImportArtifactRequest durable;
  durable.set_path(path);
  durable.set_durable(true);
  EXPECT_EQ(Ingester(without_disk).Import(context, durable, "", nullptr).status().code(),
            absl::StatusCode::kFailedPrecondition);
  node.Drain();
  EXPECT_EQ(Import(path).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(store.published, IsEmpty());
}

class PutTest : public IngestTest {
 protected:
  void SetUp() override {
    IngestTest::SetUp();
    memory_ = UniqueFd(memfd_create("offer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const auto bytes = static_cast<ssize_t>(artifact.image.size());
    ASSERT_EQ(write(memory_.get(), artifact.image.data(), artifact.image.size()), bytes);
    ASSERT_EQ(fcntl(memory_.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
    auto offer =
        OfferedMemory::OfferMemfd(handles->path(), memory_.get(), artifact.image.size(), context.deadline);
    ASSERT_TRUE(offer.ok()) << offer.status();
    offer_ = *std::move(offer);
    request_ = DescribeArtifact();
    request_.set_offer_token(offer_->token());
  }

  absl::StatusOr<v1::PutArtifactResult> Put(const v1::PutArtifactRequest& request) {
    TC_ASSIGN_OR_RETURN(Offer offer, sessions->TakeOffer(request.offer_token()));
    return ingester->Put(context, request, std::move(offer), "client", nullptr);
  }

  UniqueFd memory_;
  std::unique_ptr<OfferedMemory> offer_;
  v1::PutArtifactRequest request_;
};

TEST_F(PutTest, PutOfOfferedMemory_MakesAnArtifact) {
  const auto result = Put(request_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->existed());
  ASSERT_THAT(store.published, SizeIs(1));
  EXPECT_EQ(store.published[0].first, result->artifact_id());
  EXPECT_FALSE(store.published[0].second.has_origin());
  EXPECT_EQ(store.published_for, "client") << "the client that put it, for the access check of the key";
  auto lease = engine->LeaseReplica(result->replica().replica_id());
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(testing::Gather((*lease)->memory().host->Spans(0, artifact.image.size())), artifact.image);
}

TEST_F(PutTest, PutWithUnknownOfferOrDtype_IsRefused) {
  v1::PutArtifactRequest unknown = request_;
  unknown.set_offer_token("no such offer");
  EXPECT_EQ(Put(unknown).status().code(), absl::StatusCode::kNotFound);
  v1::PutArtifactRequest strange = request_;
  strange.mutable_tensors(0)->set_dtype("f7");
  const absl::Status refused = Put(strange).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("f7"));
}

}  // namespace
}  // namespace tensorcast::daemon::ingest_test
