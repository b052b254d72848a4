#include "objects/testing/fake_s3.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "objects/http/url.h"
#include "objects/http/xml.h"
#include "objects/s3/sigv4.h"

namespace tensorcast::objects::testing {
namespace {

constexpr std::string_view kXml = "<?xml version=\"1.0\"?>";
constexpr std::string_view kNamespace = " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";

FakeReply Error(int status, std::string_view code) {
  return {.status = status,
          .body = absl::StrCat(kXml, "<Error><Code>", code, "</Code><Message>no</Message></Error>")};
}

std::string Escaped(std::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%E4Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

// The headers that the client says it signed, but for those that a signer adds itself.
HttpHeaders SignedHeaders(const FakeRequest& request, std::string_view authorization) {
  constexpr std::string_view kBegin = "SignedHeaders=";
  const size_t begin = authorization.find(kBegin);
  if (begin == authorization.npos) return {};
  std::string_view names = authorization.substr(begin + kBegin.size());
  HttpHeaders headers;
  for (const std::string_view name : absl::StrSplit(names.substr(0, names.find(',')), ';')) {
    if (name != "host" && !absl::StartsWith(name, "x-amz-")) headers.emplace_back(name, request.Header(name));
  }
  return headers;
}

}  // namespace

FakeS3::FakeS3(Options options)
    : options_(std::move(options)),
      region_(options_.region),
      server_([this](const FakeRequest& request) { return Answer(request); }) {}

int FakeS3::Add(const std::string& key, Version version) {
  version.written = options_.wall_clock();
  if (!options_.keeps_versions) objects_[key].clear();
  objects_[key][++versions_] = std::move(version);
  return versions_;
}

void FakeS3::Put(const std::string& key, const std::string& bytes) { PutParts(key, bytes, 0); }

void FakeS3::PutParts(const std::string& key, const std::string& bytes, size_t parts) {
  absl::MutexLock lock(&mutex_);
  Add(key, {.bytes = bytes, .parts = parts, .written = {}});
}

void FakeS3::Remove(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  objects_.erase(key);
}

std::vector<std::string> FakeS3::keys() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, versions] : objects_) keys.push_back(key);
  return keys;
}

std::optional<std::string> FakeS3::Find(const std::string& key) const {
  absl::MutexLock lock(&mutex_);
  const auto versions = objects_.find(key);
  if (versions == objects_.end()) return std::nullopt;
  return versions->second.rbegin()->second.bytes;
}

size_t FakeS3::uploads() const {
  absl::MutexLock lock(&mutex_);
  return uploads_.size();
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
  for (const auto& [name, value] : SignV4(request.method, *url, SignedHeaders(request, authorization),
                                          request.body, *options_.keys, {.region = region, .time = time})) {
    // As servers do: the digest of the body is compared apart from the signature over it.
    if (name == "x-amz-content-sha256" && value != request.Header(name)) return "XAmzContentSHA256Mismatch";
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
    const bool malformed = wrong == "ExpiredToken" || wrong == "XAmzContentSHA256Mismatch";
    const bool elsewhere = wrong == "AuthorizationHeaderMalformed";
    FakeReply reply = Error(malformed || elsewhere ? 400 : 403, wrong);
    if (elsewhere) reply.headers.emplace_back("x-amz-bucket-region", region);
    return reply;
  }
  const std::string path = DecodePercent(request.path);
  std::string_view key = path;
  if (!absl::ConsumePrefix(&key, absl::StrCat("/", options_.bucket, "/"))) return Error(404, "NoSuchBucket");
  absl::MutexLock lock(&mutex_);
  if (request.method != "GET" && request.method != "HEAD") return Write(request, std::string(key));
  if (!key.empty()) return Get(request, std::string(key));
  return absl::StartsWith(absl::StrCat(request.query, "&"), "uploads=&") ? ListUploads(request)
                                                                         : List(request);
}

FakeReply FakeS3::Get(FakeRequest request, const std::string& key) {
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
  const size_t parts = version->second.parts;
  const std::string suffix = parts > 0 ? absl::StrCat("-", parts) : "";
  FakeReply reply =
      ServeBytes(request, version->second.bytes, absl::StrCat("\"", version->first, suffix, "\""));
  if (options_.keeps_versions) reply.headers.emplace_back("x-amz-version-id", absl::StrCat(version->first));
  return reply;
}

FakeReply FakeS3::List(const FakeRequest& request) {
  const std::string prefix = request.Query("prefix"), after = request.Query("continuation-token");
  const bool folders = request.Query("delimiter") == "/";
  int page = options_.page;
  if (int asked; absl::SimpleAtoi(request.Query("max-keys"), &asked)) page = std::min(page, asked);
  std::string body = absl::StrCat(kXml, "<ListBucketResult", kNamespace);
  std::string last;
  int listed = 0;
  for (const auto& [key, versions] : objects_) {
    if (!absl::StartsWith(key, prefix)) continue;
    const size_t slash = folders ? key.find('/', prefix.size()) : key.npos;
    const std::string name = slash == key.npos ? key : key.substr(0, slash + 1);
    if (name <= after || name == last) continue;
    if (listed++ == page) {
      absl::StrAppend(&body, "<IsTruncated>true</IsTruncated><NextContinuationToken>", Escaped(last),
                      "</NextContinuationToken>");
      break;
    }
    if (slash == key.npos) {
      const Version& version = versions.rbegin()->second;
      absl::StrAppend(&body, "<Contents><Key>", Escaped(name), "</Key><LastModified>",
                      TimeText(version.written), "</LastModified><Size>", version.bytes.size(),
                      "</Size></Contents>");
    } else {
      absl::StrAppend(&body, "<CommonPrefixes><Prefix>", Escaped(name), "</Prefix></CommonPrefixes>");
    }
    last = name;
  }
  return {.body = body + "</ListBucketResult>"};
}

FakeReply FakeS3::ListUploads(const FakeRequest& request) {
  const std::string prefix = request.Query("prefix"), after = request.Query("upload-id-marker");
  std::string body = absl::StrCat(kXml, "<ListMultipartUploadsResult", kNamespace), last;
  int listed = 0;
  for (const auto& [id, upload] : uploads_) {
    if (!absl::StartsWith(upload.key, prefix) || id <= after) continue;
    if (listed++ == options_.page) {
      absl::StrAppend(&body, "<IsTruncated>true</IsTruncated><NextKeyMarker>", Escaped(upload.key),
                      "</NextKeyMarker><NextUploadIdMarker>", last, "</NextUploadIdMarker>");
      break;
    }
    absl::StrAppend(&body, "<Upload><Key>", Escaped(upload.key), "</Key><UploadId>", id,
                    "</UploadId><Initiated>", TimeText(upload.begun), "</Initiated></Upload>");
    last = id;
  }
  return {.body = body + "</ListMultipartUploadsResult>"};
}

FakeReply FakeS3::Write(const FakeRequest& request, const std::string& key) {
  const std::string upload_id = request.Query("uploadId");
  if (request.method == "POST" && upload_id.empty()) {
    const std::string id = absl::StrFormat("upload-%06d", ++versions_);
    uploads_[id] = {.key = key, .parts = {}, .begun = options_.wall_clock()};
    return {.body = absl::StrCat(kXml, "<InitiateMultipartUploadResult", kNamespace, "<UploadId>", id,
                                 "</UploadId></InitiateMultipartUploadResult>")};
  }
  if (upload_id.empty()) {
    if (request.method == "DELETE") return {.status = objects_.erase(key) > 0 ? 204 : 404};
    return {
        .headers = {{"ETag", absl::StrCat("\"", Add(key, {.bytes = request.body, .parts = 0, .written = {}}),
                                          "\"")}}};
  }
  const auto upload = uploads_.find(upload_id);
  if (upload == uploads_.end() || upload->second.key != key) return Error(404, "NoSuchUpload");
  if (request.method == "POST") return Finish(request, upload_id);
  if (request.method == "DELETE") {
    uploads_.erase(upload);
    return {.status = 204};
  }
  int number = 0;
  if (!absl::SimpleAtoi(request.Query("partNumber"), &number)) return Error(400, "InvalidArgument");
  upload->second.parts[number] = request.body;
  return {.headers = {{"ETag", absl::StrCat("\"part-", number, "\"")}}};
}

FakeReply FakeS3::Finish(const FakeRequest& request, const std::string& upload_id) {
  Upload& upload = uploads_[upload_id];
  Version version;
  for (const XmlElement& part : ParseXml(request.body).value_or(XmlElement()).children) {
    int number = 0;
    const bool valid = absl::SimpleAtoi(part.TextOf("PartNumber"), &number) &&
                       part.TextOf("ETag") == absl::StrCat("\"part-", number, "\"");
    const auto sent = upload.parts.find(number);
    if (!valid || sent == upload.parts.end()) return Error(400, "InvalidPart");
    version.bytes += sent->second;
    ++version.parts;
  }
  if (version.parts != upload.parts.size()) return Error(400, "InvalidPart");
  Add(upload.key, std::move(version));
  uploads_.erase(upload_id);
  return {.body = absl::StrCat(kXml, "<CompleteMultipartUploadResult", kNamespace,
                               "</CompleteMultipartUploadResult>")};
}

}  // namespace tensorcast::objects::testing
