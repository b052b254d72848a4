#include "objects/testing/fake_s3.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "objects/http/url.h"
#include "objects/s3/sigv4.h"

namespace tensorcast::objects::testing {
namespace {

FakeReply Error(int status, std::string_view code) {
  return {.status = status,
          .body = absl::StrCat("<?xml version=\"1.0\"?><Error><Code>", code,
                               "</Code><Message>no</Message></Error>")};
}

std::string Escaped(std::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

}  // namespace

FakeS3::FakeS3(Options options)
    : options_(std::move(options)),
      region_(options_.region),
      server_([this](const FakeRequest& request) { return Answer(request); }) {}

void FakeS3::Put(const std::string& key, const std::string& bytes) {
  absl::MutexLock lock(&mutex_);
  if (!options_.keeps_versions) objects_[key].clear();
  objects_[key][++versions_] = bytes;
}

void FakeS3::Remove(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  objects_.erase(key);
}

void FakeS3::Move(const std::string& region) {
  absl::MutexLock lock(&mutex_);
  region_ = region;
}

std::string FakeS3::WrongWith(const FakeRequest& request, const std::string& region) const {
  if (!options_.keys.has_value()) return "";
  const std::string authorization = request.Header("authorization");
  if (authorization.empty()) return "AccessDenied";
  const std::string token(options_.keys->session_token.Reveal());
  if (request.Header("x-amz-security-token") != token) return "ExpiredToken";
  if (!absl::StrContains(authorization, absl::StrCat("/", region, "/s3/"))) {
    return "AuthorizationHeaderMalformed";
  }
  absl::Time time;
  std::string error;
  if (!absl::ParseTime("%E4Y%m%dT%H%M%SZ", request.Header("x-amz-date"), &time, &error)) return "NoDate";
  const auto url =
      ParseUrl(absl::StrCat("http://", request.Header("host"), request.path, "?", request.query));
  if (!url.ok()) return "NoUrl";
  for (const auto& [name, value] :
       SignV4(request.method, *url, {}, request.body, *options_.keys, {.region = region, .time = time})) {
    if (name == "authorization" && value != authorization) return "SignatureDoesNotMatch";
  }
  return "";
}

FakeReply FakeS3::Answer(const FakeRequest& request) {
  if (options_.first) {
    if (std::optional<FakeReply> reply = options_.first(request)) return *std::move(reply);
  }
  std::string region;
  {
    absl::MutexLock lock(&mutex_);
    region = region_;
  }
  if (const std::string wrong = WrongWith(request, region); !wrong.empty()) {
    const bool elsewhere = wrong == "AuthorizationHeaderMalformed";
    FakeReply reply = Error(wrong == "ExpiredToken" || elsewhere ? 400 : 403, wrong);
    if (elsewhere) reply.headers.emplace_back("x-amz-bucket-region", region);
    return reply;
  }
  const std::string path = DecodePercent(request.path);
  std::string_view key = path;
  if (!absl::ConsumePrefix(&key, absl::StrCat("/", options_.bucket, "/"))) return Error(404, "NoSuchBucket");
  return key.empty() ? List(request) : Get(request, std::string(key));
}

FakeReply FakeS3::Get(FakeRequest request, const std::string& key) {
  absl::MutexLock lock(&mutex_);
  const auto versions = objects_.find(key);
  if (versions == objects_.end()) return Error(404, "NoSuchKey");
  auto version = std::prev(versions->second.end());
  if (const std::string asked = request.Query("versionId"); !asked.empty()) {
    version =
        std::ranges::find(versions->second, asked, [](const auto& one) { return absl::StrCat(one.first); });
    if (version == versions->second.end()) return Error(404, "NoSuchVersion");
  }
  if (options_.ignores_if_match) {
    std::erase_if(request.headers, [](const auto& header) { return header.first == "if-match"; });
  }
  FakeReply reply = ServeBytes(request, version->second, absl::StrCat("\"", version->first, "\""));
  if (options_.keeps_versions) reply.headers.emplace_back("x-amz-version-id", absl::StrCat(version->first));
  return reply;
}

FakeReply FakeS3::List(const FakeRequest& request) {
  absl::MutexLock lock(&mutex_);
  const std::string prefix = request.Query("prefix"), after = request.Query("continuation-token");
  int page = options_.page;
  if (int asked; absl::SimpleAtoi(request.Query("max-keys"), &asked)) page = std::min(page, asked);
  std::string body =
      "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  std::string last;
  int listed = 0;
  for (const auto& [key, versions] : objects_) {
    if (!absl::StartsWith(key, prefix)) continue;
    const size_t slash = key.find('/', prefix.size());
    const std::string name = slash == key.npos ? key : key.substr(0, slash + 1);
    if (name <= after || name == last) continue;
    if (listed++ == page) {
      absl::StrAppend(&body, "<IsTruncated>true</IsTruncated><NextContinuationToken>", Escaped(last),
                      "</NextContinuationToken>");
      break;
    }
    absl::StrAppend(&body, slash == key.npos ? "<Contents><Key>" : "<CommonPrefixes><Prefix>", Escaped(name),
                    slash == key.npos ? "</Key></Contents>" : "</Prefix></CommonPrefixes>");
    last = name;
  }
  return {.body = body + "</ListBucketResult>"};
}

}  // namespace tensorcast::objects::testing
