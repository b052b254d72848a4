#include "objects/hf/hub_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/testing/temp_folder.h"
#include "core/disk/import_roots.h"
#include "objects/hf/hub_cache.h"
#include "objects/hf/hub_name.h"
#include "objects/testing/fake_server.h"

namespace tensorcast::objects {
namespace {

using ::testing::ElementsAre;
using testing::FakeReply;
using testing::FakeRequest;
using testing::FakeServer;
using ::testing::HasSubstr;
using testing::ServeBytes;

constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";
// The SHA-256 of "weights".
constexpr char kSha256[] = "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c";

// A hub with org/name, and the host on which its large files are.
class HubStoreTest : public ::testing::Test {
 protected:
  FakeReply Answer(const FakeRequest& request) {
    if (away_) return {.status = 503};
    if (!token_.empty() && request.Header("authorization") != "Bearer " + token_) {
      return {.status = 401, .headers = {{"X-Error-Message", "Access to model org/name is restricted."}}};
    }
    if (request.path == "/api/models/org/name/revision/main" ||
        request.path == "/api/models/org/name/revision/refs%2Fpr%2F1") {
      return {.body = absl::StrCat("{\"sha\": \"", kCommit, "\"}")};
    }
    const std::string tree = absl::StrCat("/api/models/org/name/tree/", kCommit);
    if (request.path == tree && request.query == "recursive=true") {
      return {.headers = {{"Link", first_link_.empty() ? LinkTo(tree + "?cursor=2") : first_link_}},
              .body = R"([{"type": "directory", "oid": "1", "size": 0, "path": "sub"},
                          {"type": "file", "oid": "2", "size": 2, "path": "config.json"}])"};
    }
    if (request.path == tree) {
      return {.headers = {{"Link", second_link_}},
              .body = absl::StrCat(R"([{"type": "file", "oid": "3", "size": 7, "path": "sub/w.safetensors",
                                        "lfs": {"oid": ")",
                                   kSha256, R"(", "size": 7, "pointerSize": 100}}])")};
    }
    const std::string resolve = absl::StrCat("/org/name/resolve/", kCommit, "/");
    if (request.path == resolve + "config.json") return ServeBytes(request, "{}", "\"2\"");
    if (request.path == resolve + "sub/w.safetensors") {
      return {.status = 302,
              .headers = {{"Location", absl::StrCat(cdn_.url(), "/blob?sig=", ++signatures_)}}};
    }
    return {.status = 404};
  }
  FakeReply AnswerOfCdn(const FakeRequest& request) {
    EXPECT_EQ(request.Header("authorization"), "");
    if (request.Query("sig") != absl::StrCat(valid_.load())) return {.status = 403};
    return ServeBytes(request, "weights", "\"of the cdn\"");
  }

  std::string LinkTo(const std::string& page) const {
    return absl::StrCat("<", hub_.url(), page, ">; rel=\"next\"");
  }

  std::unique_ptr<ObjectStore> Store(HubOptions options = {}) {
    options.endpoint = hub_.url();
    options.token = Secret(token_);
    return MakeHubStore(std::make_shared<HttpClient>(HttpOptions{.limits = {.attempts = 1}}), options);
  }

  std::string token_;
  std::string first_link_, second_link_;  // the Link headers of the two pages; empty: to the second, to none
  std::atomic<bool> away_ = false;
  int signatures_ = 0;
  std::atomic<int> valid_ = 1;
  FakeServer cdn_{[this](const FakeRequest& request) { return AnswerOfCdn(request); }};
  FakeServer hub_{[this](const FakeRequest& request) { return Answer(request); }};
};

TEST(HubName, Uri_IsRepositoryRevisionAndPath) {
  const auto plain = HubName::Parse("hf://org/name");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->repository, "org/name");
  EXPECT_EQ(plain->revision, "main");
  const auto full = HubName::Parse("hf://org/na.me@refs%2Fpr%2F1/sub/a b/");
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->repository, "org/na.me");
  EXPECT_EQ(full->revision, "refs/pr/1");
  EXPECT_EQ(full->path, "sub/a b");
  EXPECT_EQ(full->Uri(), "hf://org/na.me@refs%2Fpr%2F1/sub/a b");
  for (const char* const uri :
       {"hf://", "hf://org", "hf://org/", "hf://../name", "hf://org/..", "hf://org/a--b", "hf://org/name@",
        "hf://org/name@..%2F..", "hf://org/name/../x", "hf://org/na me", "hf://org//name", "s3://org/name"}) {
    EXPECT_FALSE(HubName::Parse(uri).ok()) << uri;
  }
}

TEST_F(HubStoreTest, Repository_IsPinnedToItsCommit) {
  const auto found = Store()->Find({}, "hf://org/name");
  ASSERT_TRUE(found.ok()) << found.status();
  const auto names = found->folder->List({});
  ASSERT_TRUE(names.ok());
  EXPECT_THAT(*names, ElementsAre("config.json", "sub"));
  const auto object = found->folder->Open({}, "sub/w.safetensors");
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ((*object)->identity().uri, absl::StrCat("hf://org/name@", kCommit, "/sub/w.safetensors"));
  EXPECT_EQ((*object)->identity().version, absl::StrCat("sha256:", kSha256));
  EXPECT_EQ((*object)->identity().bytes, 7);
  EXPECT_EQ(found->folder->Open({}, "none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(HubStoreTest, RevisionWithSlash_IsFound) {
  EXPECT_TRUE(Store()->Find({}, "hf://org/name@refs%2Fpr%2F1/config.json").ok());
}

TEST_F(HubStoreTest, LinkWithCommasAndOtherRelations_LeadsToNextPage) {
  const std::string tree = absl::StrCat("/api/models/org/name/tree/", kCommit);
  first_link_ = absl::StrCat("<", hub_.url(), tree, "?cursor=a>; rel=\"first\"; title=\"a, <b>; \\\"c\", <",
                             hub_.url(), tree, "?cursor=b,c;d>; title=x; rel=\"next\"");
  const auto found = Store()->Find({}, "hf://org/name");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(*found->folder->List({}), ElementsAre("config.json", "sub"));
  ASSERT_EQ(hub_.requests().size(), 3);
  EXPECT_EQ(hub_.requests()[2].query, "cursor=b,c;d");
}

TEST_F(HubStoreTest, MalformedLinkToNextPage_IsAnError) {
  for (const char* const link : {"<https://hub/a b>; rel=\"next\"", "https://hub/a; rel=\"next\""}) {
    first_link_ = link;
    const absl::Status status = Store()->Find({}, "hf://org/name").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << link;
    EXPECT_THAT(status.message(), HasSubstr("malformed"));
  }
}

TEST_F(HubStoreTest, PagesInCircle_AreAnError) {
  second_link_ = LinkTo(absl::StrCat("/api/models/org/name/tree/", kCommit, "?recursive=true"));
  const absl::Status status = Store()->Find({}, "hf://org/name").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(status.message(), HasSubstr("back to a previous page"));
}

TEST_F(HubStoreTest, SmallFile_IsReadFromHub) {
  const auto found = Store()->Find({}, "hf://org/name/config.json");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(ReadBytes({}, *found->object, 0, 2).value_or(""), "{}");
}

TEST_F(HubStoreTest, Token_DoesNotFollowRedirect) {
  token_ = "hf_token";
  const auto found = Store()->Find({}, "hf://org/name/sub/w.safetensors");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(ReadBytes({}, *found->object, 1, 3).value_or(""), "eig");  // the CDN expects no token
}

TEST_F(HubStoreTest, MissingToken_IsNamedWithHubsWords) {
  token_ = "hf_token";
  HubOptions options{.endpoint = hub_.url()};
  const auto store = MakeHubStore(std::make_shared<HttpClient>(), options);
  const absl::Status status = store->Find({}, "hf://org/name").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(status.message(), HasSubstr("restricted"));
}

TEST_F(HubStoreTest, Redirect_IsKeptUntilItExpires) {
  const auto found = Store()->Find({}, "hf://org/name/sub/w.safetensors");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(ReadBytes({}, *found->object, 0, 7).value_or(""), "weights");
  EXPECT_EQ(ReadBytes({}, *found->object, 3, 4).value_or(""), "ghts");
  EXPECT_EQ(signatures_, 1);
  valid_ = 2;  // the first signature has expired
  EXPECT_EQ(ReadBytes({}, *found->object, 0, 7).value_or(""), "weights");
  EXPECT_EQ(signatures_, 2);
}

TEST_F(HubStoreTest, RefusedRedirect_IsAnError) {
  HubOptions options{
      .may_follow = [](const Url&, const Url&) { return absl::PermissionDeniedError("not listed"); }};
  const auto found = Store(options)->Find({}, "hf://org/name/sub/w.safetensors");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(ReadBytes({}, *found->object, 0, 7).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(HubStoreTest, File_OpensAgainByItsCommit) {
  const auto store = Store();
  const auto found = store->Find({}, "hf://org/name/sub/w.safetensors");
  ASSERT_TRUE(found.ok()) << found.status();
  ObjectIdentity identity = found->object->identity();
  EXPECT_TRUE(store->OpenAgain({}, identity).ok());
  identity.version = "sha256:00";
  EXPECT_EQ(store->OpenAgain({}, identity).status().code(), absl::StatusCode::kFailedPrecondition);
}

// The cache as huggingface_hub writes it.
class HubCacheTest : public HubStoreTest {
 protected:
  HubCacheTest() {
    const std::filesystem::path model = folder_.File("models--org--name");
    const std::filesystem::path snapshot = model / "snapshots" / kCommit;
    std::filesystem::create_directories(snapshot / "sub");
    std::filesystem::create_directories(model / "refs" / "refs" / "pr");
    std::filesystem::create_directories(model / "blobs");
    std::ofstream(model / "refs" / "main") << kCommit;
    blob_ = model / "blobs" / "9b2f5e1d1c6a2a2f35ae6c0ff9fbf1c3b2b0b57f4a6c9c1b0a7f8e6d5c4b3a29";
    std::ofstream(blob_) << "weights";
    std::filesystem::create_symlink(std::filesystem::path("../../../blobs") / blob_.filename(),
                                    snapshot / "sub" / "w.safetensors");
  }
  HubOptions Cached() const {
    return {.cache_folder = folder_.path(),
            .files = std::make_shared<ImportRoots>(ImportRoots::Everything())};
  }

  const tensorcast::testing::TempFolder folder_;
  std::filesystem::path blob_;
};

TEST_F(HubCacheTest, CompleteSnapshot_IsReadInPlaceOfHub) {
  const auto found = Store(Cached())->Find({}, "hf://org/name");
  ASSERT_TRUE(found.ok()) << found.status();
  const auto object = found->folder->Open({}, "sub/w.safetensors");
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ((*object)->identity().uri, std::filesystem::canonical(blob_).string());
  EXPECT_EQ(cdn_.requests().size(), 0);
}

TEST_F(HubCacheTest, FolderOfRepository_IsReadFromHub) {
  const auto found = Store(Cached())->Find({}, "hf://org/name/sub");
  ASSERT_TRUE(found.ok()) << found.status();
  const auto object = found->folder->Open({}, "w.safetensors");
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ((*object)->identity().uri, absl::StrCat("hf://org/name@", kCommit, "/sub/w.safetensors"));
}

TEST_F(HubCacheTest, IncompleteSnapshot_IsReadFromHub) {
  std::filesystem::resize_file(blob_, 3);
  const auto found = Store(Cached())->Find({}, "hf://org/name/sub/w.safetensors");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(ReadBytes({}, *found->object, 0, 7).value_or(""), "weights");
}

TEST_F(HubCacheTest, OfflineStore_AsksNoHub) {
  HubOptions options = Cached();
  options.offline = true;
  EXPECT_TRUE(Store(options)->Find({}, "hf://org/name").ok());
  EXPECT_EQ(Store(options)->Find({}, "hf://org/other").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(hub_.requests().size(), 0);
}

TEST_F(HubCacheTest, HubIsAway_CacheAnswersForBranchAndCommit) {
  away_ = true;
  for (const std::string& name : {std::string("hf://org/name"), absl::StrCat("hf://org/name@", kCommit)}) {
    EXPECT_TRUE(Store(Cached())->Find({}, name).ok()) << name;
  }
  EXPECT_EQ(Store(Cached())->Find({}, "hf://org/other").status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(HubCacheTest, BlobWithOtherBytes_IsRefused) {
  const auto found = Store(Cached())->Find({}, "hf://org/name/sub/w.safetensors");
  ASSERT_TRUE(found.ok()) << found.status();
  Sha256 digest;
  digest.Add(std::as_bytes(std::span("weights", 7)));
  const absl::Status status = CheckSha256(found->object->identity(), digest.Hex());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST_F(HubCacheTest, BlobWithItsBytes_IsAccepted) {
  const std::filesystem::path good =
      blob_.parent_path() / "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
  std::ofstream(good) << "hello";
  const auto found = ImportRoots::Everything().Find({}, good.string());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(PromisedSha256(found->object->identity()), good.filename().string());
  Sha256 digest;
  for (const std::string_view piece : {"he", "llo"}) digest.Add(std::as_bytes(std::span(piece)));
  EXPECT_TRUE(CheckSha256(found->object->identity(), digest.Hex()).ok());
}

TEST(HubCache, Folder_FollowsHuggingFacesVariables) {
  std::string variable, value;
  const Environment environment = [&](std::string_view name) {
    if (name == "HOME") return std::string("/home/a");
    return name == variable ? value : std::string();
  };
  const auto folder = [&](const char* name, const char* text) {
    variable = name;
    value = text;
    return HubCacheFolder(environment);
  };
  EXPECT_EQ(folder("", ""), "/home/a/.cache/huggingface/hub");
  EXPECT_EQ(folder("XDG_CACHE_HOME", "/c"), "/c/huggingface/hub");
  EXPECT_EQ(folder("HF_HOME", "/h"), "/h/hub");
  EXPECT_EQ(folder("HF_HUB_CACHE", "/x"), "/x");
}

TEST(HubCache, Offline_TakesHuggingFacesValues) {
  std::string value;
  const Environment environment = [&](std::string_view name) {
    return name == "HF_HUB_OFFLINE" ? value : std::string();
  };
  for (const char* const yes : {"1", "ON", "on", "Yes", "true"}) {
    value = yes;
    EXPECT_TRUE(HubIsOffline(environment)) << yes;
  }
  for (const char* const no : {"", "0", "off", "no", "false", "2"}) {
    value = no;
    EXPECT_FALSE(HubIsOffline(environment)) << no;
  }
}

}  // namespace
}  // namespace tensorcast::objects
