// An object store with faults by seed, during imports by a real daemon. An import has the right bytes, or is
// refused by the object's name; a refused one leaves no key, artifact or replica.
//
// TENSORCAST_OBJECT_FAULTS says how many faults, TENSORCAST_OBJECT_FAULTS_SEED which.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <random>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "objects/testing/fake_s3.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast::object_faults_robustness_test {
namespace {

namespace fs = std::filesystem;
using objects::testing::FakeReply;
using objects::testing::FakeRequest;
using objects::testing::FakeS3;
using ::testing::HasSubstr;

constexpr uint64_t kModelBytes = 12 << 20;
constexpr int kFaults = 30;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

std::string BytesOf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

enum class Kind {
  kUnavailable,   // 503 to some requests
  kServerError,   // 500 to every request from then on
  kTooMany,       // 429 with Retry-After
  kShortBody,     // the body ends early
  kReset,         // a reset in the middle of the body
  kSlow,          // the body comes in small pieces
  kReplaced,      // another model takes the object's place
  kOtherEtag,     // one reply has another ETag and other bytes
  kOtherHost,     // a redirect to another host
  kOtherRegion,   // the bucket moves to another region
  kNoRange,       // the whole object in place of a range
  kShiftedRange,  // the range of a reply lies elsewhere
  kForbidden,     // 403 from then on
  kGone,          // 404 from then on
};
constexpr int kKinds = static_cast<int>(Kind::kGone) + 1;

struct Fault {
  Kind kind = Kind::kUnavailable;
  int after = 0;     // requests that are answered well
  int strikes = 1;   // replies that it spoils
  double share = 0;  // of the body: where it strikes

  // Whether its replies are made of the object's bytes.
  bool SendsObject() const {
    switch (kind) {
      case Kind::kShortBody:
      case Kind::kReset:
      case Kind::kSlow:
      case Kind::kOtherEtag:
      case Kind::kNoRange:
      case Kind::kShiftedRange:
        return true;
      default:
        return false;
    }
  }

  // Whether the import has to succeed, since retries are enough.
  bool IsHarmless() const {
    switch (kind) {
      case Kind::kUnavailable:
      case Kind::kTooMany:
      case Kind::kShortBody:
      case Kind::kReset:
        return strikes < 6;  // HttpLimits::attempts
      case Kind::kSlow:
      case Kind::kOtherRegion:
        return true;
      default:
        return false;
    }
  }
};

std::string Describe(const Fault& fault) {
  return absl::StrCat("kind ", static_cast<int>(fault.kind), " after ", fault.after, " requests, ",
                      fault.strikes, " times, at ", fault.share, " of the body");
}

// The kinds come in turn, so that a few faults have each of them.
Fault Draw(uint64_t i, std::mt19937_64& random) {
  const auto below = [&](uint64_t limit) { return static_cast<int>(random() % limit); };
  Fault fault{.kind = static_cast<Kind>(i % kKinds), .after = below(12), .strikes = 1 + below(3)};
  fault.share = static_cast<double>(random() % 1000) / 1000;
  const bool lasting = fault.kind == Kind::kServerError || fault.kind == Kind::kForbidden ||
                       fault.kind == Kind::kGone || fault.kind == Kind::kOtherHost;
  if (lasting) fault.strikes = 1 << 20;
  if (fault.kind == Kind::kUnavailable && below(4) == 0) fault.strikes = 1 << 20;
  if (fault.kind == Kind::kTooMany) fault.strikes = 1;
  return fault;
}

class ObjectFaults : public RobustnessTest {
 protected:
  void SetUp() override {
    RobustnessTest::SetUp();
    ClusterOptions options = FastOptions();
    options.daemons = 1;
    options.settings_of_daemon = {{"daemon.origins=[s3://bucket/]"}};
    options.daemon_environments = {{{"HOME", directory_->path()},
                                    {"AWS_PROFILE", ""},
                                    {"AWS_REGION", "us-east-1"},
                                    {"AWS_ENDPOINT_URL", s3_.url()},
                                    {"AWS_ENDPOINT_URL_S3", ""},
                                    {"AWS_ACCESS_KEY_ID", "KEY"},
                                    {"AWS_SECRET_ACCESS_KEY", "secret"},
                                    {"AWS_SESSION_TOKEN", ""},
                                    {"no_proxy", "127.0.0.1"}}};
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    TC_ASSERT_OK_AND_ASSIGN(admin_, Admin(0));
    ASSERT_NO_FATAL_FAILURE(Prepare(first_, 1));
    ASSERT_NO_FATAL_FAILURE(Prepare(second_, 2));
    Upload(first_.bytes);
    TC_ASSERT_OK_AND_ASSIGN(const client::PutResult put, client(0).Import(Context(), kUri, {}));
    ASSERT_NO_FATAL_FAILURE(Remove(put));
    TC_ASSERT_OK(invariants().RecordBaseline(Soon()));
  }

  struct Model {
    std::string bytes;
    std::string artifact_id;
  };

  // The artifact of the same bytes from a local file.
  void Prepare(Model& model, uint64_t seed) {
    const std::string file = MakeModel(absl::StrCat("model-", seed, ".safetensors"), kModelBytes, 1, seed);
    model.bytes = BytesOf(file);
    TC_ASSERT_OK_AND_ASSIGN(const client::PutResult put, client(0).Import(Context(), file, {}));
    model.artifact_id = put.artifact_id;
    Remove(put);
  }
  void Remove(const client::PutResult& put) {
    TC_ASSERT_OK(admin_->EvictReplica(Context(), put.replica_id, /*force=*/true));
    TC_ASSERT_OK(admin_->DeleteArtifact(Context(), put.artifact_id));
  }

  void Begin(const Fault& fault) {
    Upload(first_.bytes);
    absl::MutexLock lock(&mutex_);
    fault_ = fault;
  }
  void End() {
    absl::MutexLock lock(&mutex_);
    fault_.reset();
  }

  // One import under this fault.
  void ImportUnder(const Fault& fault) {
    Begin(fault);
    const absl::StatusOr<client::PutResult> put = client(0).Import(Context(), kUri, {.key = "k"});
    End();
    if (put.ok()) {
      const bool second = fault.kind == Kind::kReplaced && put->artifact_id == second_.artifact_id;
      EXPECT_TRUE(second || put->artifact_id == first_.artifact_id) << "other bytes than the object's";
      TC_ASSERT_OK(admin_->DeleteKey(Context(), "k"));
      Remove(*put);
    } else {
      EXPECT_FALSE(fault.IsHarmless()) << put.status();
      EXPECT_THAT(std::string(put.status().message()), HasSubstr(kUri));
      EXPECT_EQ(client(0).ResolveKey(Context(), "k").status().code(), absl::StatusCode::kNotFound);
      ++refused_;
    }
    TC_ASSERT_OK_AND_ASSIGN(const auto artifacts,
                            admin_->ListArtifacts(Context(), /*unkeyed_only=*/false, absl::ZeroDuration()));
    EXPECT_TRUE(artifacts.empty()) << artifacts[0].DebugString();
  }

  std::optional<FakeReply> Spoil(const FakeRequest& request) {
    absl::MutexLock lock(&mutex_);
    if (!fault_.has_value()) return std::nullopt;
    // Listings, and what may lie beside the object, do not have its bytes.
    if (fault_->SendsObject() && !absl::EndsWith(request.path, kKey)) return std::nullopt;
    if (fault_->after-- > 0 || fault_->strikes-- <= 0) return std::nullopt;
    const size_t at = static_cast<size_t>(fault_->share * static_cast<double>(first_.bytes.size()));
    switch (fault_->kind) {
      case Kind::kUnavailable:
        return FakeReply{.status = 503};
      case Kind::kServerError:
        return FakeReply{.status = 500};
      case Kind::kTooMany:
        return FakeReply{.status = 429, .headers = {{"Retry-After", "1"}}};
      case Kind::kShortBody:
      case Kind::kReset: {
        FakeReply reply = Range(request, first_.bytes);
        reply.close_after = static_cast<size_t>(fault_->share * static_cast<double>(reply.body.size()));
        reply.reset = fault_->kind == Kind::kReset;
        return reply;
      }
      case Kind::kSlow: {
        FakeReply reply = Range(request, first_.bytes);
        reply.piece_bytes = 64 << 10;
        reply.before_piece = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
        return reply;
      }
      case Kind::kReplaced:
        Upload(second_.bytes);
        return std::nullopt;
      case Kind::kOtherEtag: {
        FakeReply reply = Range(request, second_.bytes);
        reply.headers[0].second = "\"other\"";
        return reply;
      }
      case Kind::kOtherHost:
        return FakeReply{.status = 307, .headers = {{"Location", other_.url() + request.path}}};
      case Kind::kOtherRegion:
        s3_.Move(moves_++ % 2 == 0 ? "eu-west-1" : "us-east-1");
        return std::nullopt;
      case Kind::kNoRange:
        return FakeReply{.headers = {{"ETag", Etag()}}, .body = first_.bytes};
      case Kind::kShiftedRange: {
        FakeRequest shifted = request;
        std::erase_if(shifted.headers, [](const auto& header) { return header.first == "range"; });
        shifted.headers.emplace_back("range", absl::StrCat("bytes=", at, "-", at + 99));
        return Range(shifted, first_.bytes);
      }
      case Kind::kForbidden:
        return FakeReply{.status = 403};
      case Kind::kGone:
        return FakeReply{.status = 404};
    }
    return std::nullopt;
  }

  static constexpr char kKey[] = "models/one.safetensors";
  static constexpr char kUri[] = "s3://bucket/models/one.safetensors";

  FakeReply Range(const FakeRequest& request, const std::string& bytes) const {
    FakeRequest lax = request;  // the reply comes whatever version is asked for
    std::erase_if(lax.headers, [](const auto& header) { return header.first == "if-match"; });
    return objects::testing::ServeBytes(lax, bytes, Etag());
  }
  void Upload(const std::string& bytes) {
    s3_.Put(kKey, bytes);
    ++puts_;
  }
  std::string Etag() const { return absl::StrCat("\"", puts_.load(), "\""); }  // as FakeS3 counts them

  Model first_, second_;
  std::unique_ptr<client::AdminClient> admin_;
  int refused_ = 0;
  absl::Mutex mutex_;
  std::optional<Fault> fault_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> puts_ = 0;
  int moves_ = 0;
  objects::testing::FakeServer other_{[](const FakeRequest&) { return FakeReply{.status = 500}; }};
  FakeS3 s3_{
      {.keys = objects::Credentials{.access_key_id = "KEY", .secret_access_key = objects::Secret("secret")},
       .first = [this](const FakeRequest& request) { return Spoil(request); }}};
};

TEST_F(ObjectFaults, SeededFaults_LeaveRightImportsOrNone) {
  const uint64_t seed = FromEnvironment("TENSORCAST_OBJECT_FAULTS_SEED", 20260101);
  const uint64_t faults = FromEnvironment("TENSORCAST_OBJECT_FAULTS", kFaults);
  std::mt19937_64 random(seed);
  for (uint64_t i = 0; i < faults; ++i) {
    const Fault fault = Draw(i, random);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", fault ", i, ": ", Describe(fault)));
    ASSERT_NO_FATAL_FAILURE(ImportUnder(fault));
  }
  std::cout << faults << " faults of seed " << seed << ": " << refused_ << " imports refused by name\n";
  EXPECT_TRUE(other_.requests().empty()) << "a redirect was followed to a host that is not the endpoint";
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
  Upload(first_.bytes);
  TC_ASSERT_OK_AND_ASSIGN(const client::PutResult put, client(0).Import(Context(), kUri, {.key = "k"}));
  EXPECT_EQ(put.artifact_id, first_.artifact_id);
}

}  // namespace
}  // namespace tensorcast::object_faults_robustness_test
