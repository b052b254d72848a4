// Imports from object stores: with a client's credentials, joined, and with promised digests.
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "core/handles/handle_client.h"
#include "core/testing/memory_objects.h"
#include "daemon/service/import_joins.h"
#include "daemon/service/service_fixture.h"
#include "global_store/imports/import_claims.h"
#include "objects/client_credentials.h"
#include "objects/hf/hub_cache.h"
#include "objects/open.h"
#include "objects/testing/fake_s3.h"

namespace tensorcast::daemon::object_imports_test {
namespace {

using objects::testing::FakeReply;
using objects::testing::FakeRequest;
using objects::testing::FakeS3;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kUri[] = "s3://bucket/models/m.safetensors";
constexpr char kSecret[] = "secret-of-the-client";

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ClientCredentialsImportTest : public ServiceTest {
 protected:
  // The daemon has no credentials and lists no origin; its endpoint is the fake store.
  void SetUp() override {
    ServiceTest::SetUp();
    s3_.Put("models/m.safetensors", BytesOf(WriteModel("m.safetensors")));
    const objects::Environment environment = [url = s3_.url()](std::string_view name) {
      return name == "AWS_ENDPOINT_URL" ? url : name == "AWS_EC2_METADATA_DISABLED" ? "true" : "";
    };
    objects::OpenOptions open{.environment = environment, .origins = objects::Origins(), .files = imports};
    Ingester::Options options = IngesterOptions();
    options.objects = objects::OpenObjects(std::move(open));
    options.environment = environment;
    ingester = std::make_unique<Ingester>(options);
  }
  absl::StatusOr<v1::PutArtifactResult> ImportAsClient(const std::string& secret = kSecret) {
    objects::ClientCredentials credentials{
        .keys = objects::Credentials{.access_key_id = "KEY", .secret_access_key = objects::Secret(secret)},
        .s3_endpoint = s3_.url()};
    TC_ASSIGN_OR_RETURN(const UniqueFd file, objects::Hand(credentials));
    const int fd = file.get();
    TC_ASSIGN_OR_RETURN(const auto offer,
                        OfferedMemory::OfferFiles(handles->path(), {&fd, 1}, context.deadline));
    v1::ImportArtifactRequest request;
    request.set_path(kUri);
    request.set_offer_token(offer->token());
    return ingester->Import(context, request, "", nullptr);
  }

  int reads_ = 0, good_reads_ = 1 << 30;  // after these the credentials have expired
  FakeS3 s3_{
      {.keys = objects::Credentials{.access_key_id = "KEY", .secret_access_key = objects::Secret(kSecret)},
       .first = [this](const FakeRequest& request) -> std::optional<FakeReply> {
         if (request.Header("range").empty() || ++reads_ <= good_reads_) return std::nullopt;
         return FakeReply{.status = 400,
                          .body = "<Error><Code>ExpiredToken</Code><Message>m</Message></Error>"};
       }}};
};

TEST_F(ClientCredentialsImportTest, ClientsKeys_ReadForThisImportAlone) {
  const auto result = ImportAsClient();
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_THAT(store.published, SizeIs(1));
  EXPECT_FALSE(store.published[0].second.has_origin()) << "the daemon cannot read it again";
  const absl::Status without = Import(kUri).status();
  EXPECT_EQ(without.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(without.message()), HasSubstr("daemon.origins"));
}

TEST_F(ClientCredentialsImportTest, WrongKeys_AreRefusedWithoutTheSecret) {
  const absl::Status refused = ImportAsClient("another-secret").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(kUri), Not(HasSubstr("another-secret"))));
  EXPECT_THAT(store.published, IsEmpty());
}

TEST_F(ClientCredentialsImportTest, KeysThatExpireDuringImport_AreNamed) {
  good_reads_ = 2;  // of the header
  const absl::Status ended = ImportAsClient().status();
  EXPECT_EQ(ended.code(), absl::StatusCode::kPermissionDenied) << ended;
  EXPECT_THAT(std::string(ended.message()), AllOf(HasSubstr("have expired"), HasSubstr("sign in again")));
  EXPECT_THAT(store.published, IsEmpty());
  EXPECT_THAT(engine->ListReplicas(), IsEmpty());
}

class JoinedImportTest : public ServiceTest {
 protected:
  void SetUp() override {
    ServiceTest::SetUp();
    objects_->Put("mem://models/m.safetensors", BytesOf(WriteModel("m.safetensors")));
    Ingester::Options options = IngesterOptions();
    options.objects = objects_;
    options.joins = &joins_;
    options.materializer = materializer.get();
    ingester = std::make_unique<Ingester>(options);
  }

  const std::shared_ptr<testing::MemoryObjects> objects_ = std::make_shared<testing::MemoryObjects>();
  absl::Mutex mutex_;
  global_store::ImportClaims claims_;
  std::vector<std::string> granted_;  // ids of imports
  ImportJoins joins_{
      [this](const RequestContext&,
             const v1::ClaimImportRequest& request) -> absl::StatusOr<v1::ClaimImportResponse> {
        absl::MutexLock lock(&mutex_);
        v1::ClaimImportResponse response;
        if (request.ended()) {
          claims_.End("me", 1, request.import_id(), request.artifact_id(), SteadyNow());
          return response;
        }
        const auto answer = claims_.Claim("me", 1, request.import_id(), SteadyNow());
        if (answer.granted) granted_.push_back(request.import_id());
        response.set_granted(answer.granted);
        response.set_artifact_id(answer.artifact_id);
        *response.mutable_retry_after() = rpc::ToProto(absl::Seconds(2));
        return response;
      }};
};

TEST_F(JoinedImportTest, EightImportsAtOnce_ReadOnce) {
  std::vector<absl::StatusOr<v1::PutArtifactResult>> results(8, absl::UnknownError(""));
  std::vector<std::thread> imports;
  for (size_t i = 0; i < results.size(); ++i) {
    imports.emplace_back([&, i] { results[i] = Import("mem://models/m.safetensors", absl::StrCat("k", i)); });
  }
  for (std::thread& import : imports) import.join();
  for (const auto& result : results) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->artifact_id(), results[0]->artifact_id());
  }
  EXPECT_THAT(granted_, SizeIs(1));
  EXPECT_THAT(store.published, SizeIs(8)) << "each binds its key";
}

TEST_F(JoinedImportTest, NewVersion_IsAnotherImport) {
  ASSERT_TRUE(Import("mem://models/m.safetensors").ok());
  objects_->Put("mem://models/m.safetensors", BytesOf(folder + "/models/m.safetensors"));
  ASSERT_TRUE(Import("mem://models/m.safetensors").ok());
  ASSERT_THAT(granted_, SizeIs(2));
  EXPECT_NE(granted_[0], granted_[1]);
}

TEST_F(JoinedImportTest, ArtifactThatIsGone_IsReadAgain) {
  const auto first = Import("mem://models/m.safetensors");
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(engine->Evict(first->replica().replica_id(), /*force=*/true).ok());
  const auto again = Import("mem://models/m.safetensors");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->artifact_id(), first->artifact_id());
}

class PromisedDigestTest : public ServiceTest {
 protected:
  // A blob of the hub's cache with that name.
  std::string WriteBlob(const std::string& name) {
    std::filesystem::create_directories(folder + "/models/blobs");
    return WriteModel("blobs/" + name);
  }
};

TEST_F(PromisedDigestTest, BlobWithOtherBytes_IsNotPublished) {
  const absl::Status refused = Import(WriteBlob(std::string(64, 'a'))).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << refused;
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("SHA-256"), HasSubstr("import again")));
  EXPECT_THAT(store.published, IsEmpty());
  EXPECT_THAT(engine->ListReplicas(), IsEmpty());
}

TEST_F(PromisedDigestTest, BlobWithItsBytes_IsImported) {
  objects::Sha256 digest;
  const std::string bytes = BytesOf(WriteModel("m.safetensors"));
  digest.Add(std::as_bytes(std::span(bytes)));
  const std::string blob = WriteBlob(digest.Hex());
  EXPECT_TRUE(Import(blob).ok());
  v1::ImportArtifactRequest to_gpu;
  to_gpu.set_path(blob);
  to_gpu.mutable_location()->set_kind(v1::LOCATION_KIND_GPU);
  const auto on_gpu = ingester->Import(context, to_gpu, "", nullptr);
  EXPECT_TRUE(on_gpu.ok()) << on_gpu.status();
}

}  // namespace
}  // namespace tensorcast::daemon::object_imports_test
