#include "objects/s3/s3_client.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/text.h"
#include "core/source/object_reader.h"
#include "objects/http/xml.h"
#include "objects/s3/sigv4.h"

namespace tensorcast::objects {
namespace {

// Hidden objects take no room in a list. This bounds the requests where a prefix has hardly anything else.
constexpr int kMaxPagesWithoutNames = 1000;

// Once for the credentials, and for a bucket that is found by its region and then by its endpoint.
constexpr int kMaxSends = 4;

bool IsBucket(std::string_view name) {
  return name.size() >= 3 && name.size() <= 63 && absl::ascii_isalnum(name[0]) &&
         !absl::StrContains(name, "..") && std::ranges::all_of(name, [](char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
         });
}

bool IsRegion(std::string_view text) {
  // A region becomes a part of a host name and of a signature, and a reply of a server may name it: nothing
  // else than a plain word may get there.
  return !text.empty() && text.size() < 64 &&
         std::ranges::all_of(
             text, [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-'; });
}

std::string AwsEndpoint(std::string_view region) {
  return absl::StrCat("https://s3.", region, ".amazonaws.com", absl::StartsWith(region, "cn-") ? ".cn" : "");
}

// <Code> and <Message> of an error's body, and the rest of what it says.
XmlElement ErrorOf(const HttpReply& reply) {
  if (reply.body.empty()) return {};
  return ParseXml(reply.body).value_or(XmlElement());
}

bool IsExpired(std::string_view code) {
  return code == "ExpiredToken" || code == "TokenRefreshRequired" || code == "InvalidToken";
}

// Whether other credentials may do. The reply to HEAD has no body that would tell.
bool SaysExpired(const HttpReply& reply, std::string_view method) {
  if (reply.status != 400 && reply.status != 401 && reply.status != 403) return false;
  return IsExpired(ErrorOf(reply).TextOf("Code")) || (method == "HEAD" && reply.status == 400);
}

}  // namespace

absl::Status StatusOfS3Reply(std::string_view subject, const HttpReply& reply) {
  const XmlElement error = ErrorOf(reply);
  const std::string_view code = error.TextOf("Code");
  // Only the user can mend this, so the message does not say "check the credentials" as for other refusals.
  if (IsExpired(code)) {
    return absl::PermissionDeniedError(
        absl::StrCat(subject, ": the session credentials have expired (", Printable(code),
                     "); sign in again, or set other credentials, and try again"));
  }
  return StatusOfReply(subject, reply, code.empty() ? "" : absl::StrCat(code, ": ", error.TextOf("Message")));
}

absl::StatusOr<S3Name> S3Name::Parse(std::string_view scheme, std::string_view uri) {
  std::string_view rest = uri;
  if (!absl::ConsumePrefix(&rest, absl::StrCat(scheme, "://"))) {
    return absl::InvalidArgumentError(absl::StrCat("open ", uri, ": the URI does not start with ", scheme,
                                                   "://; write ", scheme, "://bucket/prefix"));
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  S3Name name{.bucket = std::string(rest.substr(0, slash))};
  if (slash < rest.size()) name.key = rest.substr(slash + 1);
  // The name becomes a part of a host or a path unencoded, so that a wrong one could lead elsewhere.
  if (IsBucket(name.bucket)) return name;
  return absl::InvalidArgumentError(
      absl::StrCat("open ", uri, ": a bucket cannot have this name; write ", scheme, "://bucket/prefix"));
}

S3Client::S3Client(std::shared_ptr<HttpClient> http, S3Options options)
    : http_(std::move(http)), options_(std::move(options)) {}

std::string S3Client::UriOf(const S3Name& name) const {
  return absl::StrCat(options_.scheme, "://", name.bucket, "/", name.key);
}

ObjectIdentity S3Client::IdentityOf(const S3Name& name, const S3Object& object) const {
  return {.uri = UriOf(name),
          .bytes = object.bytes,
          .version = object.version_id.empty() ? absl::StrCat("etag:", object.etag)
                                               : absl::StrCat(kS3VersionId, object.version_id)};
}

absl::StatusOr<S3Client::Place> S3Client::PlaceOf(const std::string& bucket) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = places_.find(bucket); found != places_.end()) return found->second;
  }
  if (!IsRegion(options_.region)) {
    return absl::InvalidArgumentError(
        absl::StrCat("read bucket ", bucket, ": '", options_.region, "' is not a region; set AWS_REGION"));
  }
  TC_ASSIGN_OR_RETURN(Url endpoint,
                      ParseUrl(options_.endpoint.empty() ? AwsEndpoint(options_.region) : options_.endpoint));
  // An endpoint may have a path of its own, below which the buckets lie.
  endpoint.path = absl::StripSuffix(endpoint.path, "/");
  return Place{.endpoint = std::move(endpoint), .region = options_.region};
}

bool S3Client::IsVirtualHost(const std::string& bucket, const Place& place) const {
  if (options_.addressing != S3Options::Addressing::kAuto) {
    return options_.addressing == S3Options::Addressing::kVirtualHost;
  }
  const bool aws = options_.endpoint.empty();
  // Old buckets may have names that no host can have: with '_' or upper case.
  return aws && (place.endpoint.scheme != "https" || !absl::StrContains(bucket, '.')) &&
         !absl::StrContains(bucket, '_') && bucket == absl::AsciiStrToLower(bucket);
}

Url S3Client::UrlOf(const S3Call& call, const Place& place) const {
  Url url = place.endpoint;
  if (IsVirtualHost(call.name.bucket, place)) {
    url.host = absl::StrCat(call.name.bucket, ".", url.host);
    absl::StrAppend(&url.path, "/", EncodePath(call.name.key));
  } else {
    absl::StrAppend(&url.path, "/", call.name.bucket, "/", EncodePath(call.name.key));
  }
  url.query = EncodeQuery(call.query);
  return url;
}

std::optional<S3Client::Place> S3Client::MovedTo(const std::string& bucket, const Place& from,
                                                 const HttpReply& reply) const {
  // 301 and 307 tell of another endpoint. A request that is signed for the wrong region gets 400 or 403, with
  // the region in a header or, except for HEAD, in the body.
  if (reply.status / 100 != 3 && reply.status != 400 && reply.status != 403) return std::nullopt;
  Place to = from;
  const std::string region(reply.Header("x-amz-bucket-region"));
  to.region = region.empty() ? std::string(ErrorOf(reply).TextOf("Region")) : region;
  if (!IsRegion(to.region)) to.region = from.region;
  if (options_.endpoint.empty()) {
    // AWS's other regions have known endpoints; what a reply calls one is not needed.
    const absl::StatusOr<Url> endpoint = ParseUrl(AwsEndpoint(to.region));
    to.endpoint.host = endpoint.ok() ? endpoint->host : from.endpoint.host;
  } else if (const std::string_view location = reply.Header("location");
             reply.status / 100 == 3 && !location.empty()) {
    const absl::StatusOr<Url> url = ResolveLocation(reply.url, location);
    if (!url.ok()) return std::nullopt;
    to.endpoint.scheme = url->scheme;
    to.endpoint.host = url->host;
    to.endpoint.port = url->port;
    if (IsVirtualHost(bucket, from)) {
      // UrlOf puts the bucket in front again.
      to.endpoint.host = absl::StripPrefix(url->host, absl::StrCat(bucket, "."));
    }
  }
  // Without this a store that refuses a request for other reasons would be asked kMaxSends times.
  if (to.endpoint == from.endpoint && to.region == from.region) return std::nullopt;
  return to;
}

// Each round signs and sends the request once. It goes round again where the store says that the bucket lies
// elsewhere (MovedTo), or that the credentials have expired; both happen a few times at most. Any other reply
// is the caller's, whatever its status.
absl::StatusOr<HttpReply> S3Client::Send(const RequestContext& context, const S3Call& call) {
  const std::string subject = absl::StrCat(call.verb, " ", UriOf(call.name));
  bool refused = false;
  TC_ASSIGN_OR_RETURN(Place place, PlaceOf(call.name.bucket));
  for (int sends = 1;; ++sends) {
    std::shared_ptr<const Credentials> used;
    HttpRequest request{.subject = subject,
                        .method = call.method,
                        .url = UrlOf(call, place),
                        .headers = call.headers,
                        .body = call.body,
                        .read = call.read,
                        .may_be_local = options_.may_be_local};
    // HttpClient calls it for each attempt: a request that waits long between attempts is signed with the
    // time and the keys of the last one. `used` tells below which keys were refused.
    request.authorize = [&](const Url& url) -> absl::StatusOr<HttpHeaders> {
      if (options_.credentials == nullptr) return HttpHeaders();
      absl::StatusOr<std::shared_ptr<const Credentials>> got = options_.credentials->Get(context);
      if (!got.ok()) return Annotate(got.status(), subject);
      used = *std::move(got);
      if (used == nullptr) return HttpHeaders();
      return SignV4(call.method, url, call.headers, call.body, *used,
                    {.region = place.region, .time = options_.wall_clock()});
    };
    TC_ASSIGN_OR_RETURN(HttpReply reply, http_->Fetch(context, request));
    if (reply.status / 100 == 2 || sends == kMaxSends) return reply;

    // This request has no may_follow, so redirects arrive here as replies. They are followed by a new
    // request: a signature covers the host and the region.
    if (std::optional<Place> to = MovedTo(call.name.bucket, place, reply)) {
      const Url url = UrlOf(call, *to);
      const bool same_endpoint = SameOrigin(url, request.url);
      if (!same_endpoint && request.url.scheme == "https" && url.scheme != "https") {
        return absl::PermissionDeniedError(absl::StrCat(subject, ": the server redirects to ", url.Origin(),
                                                        ", which is not https; check AWS_ENDPOINT_URL"));
      }
      if (options_.may_follow && !same_endpoint) {
        TC_RETURN_IF_ERROR(options_.may_follow(request.url, url));
      } else if (!options_.endpoint.empty() && !same_endpoint) {
        return absl::PermissionDeniedError(absl::StrCat(subject, ": the server redirects to ", url.Origin(),
                                                        "; set AWS_ENDPOINT_URL to this endpoint"));
      }
      place = *std::move(to);
      absl::MutexLock lock(&mutex_);
      // Each later request for the bucket goes there at once.
      places_[call.name.bucket] = place;
      continue;
    }
    // Once: if new keys are refused as well, the fault is not their age.
    if (used == nullptr || refused || !SaysExpired(reply, call.method)) return reply;
    options_.credentials->Refuse(*used);
    refused = true;
  }
}

absl::StatusOr<S3Object> S3Client::Head(const RequestContext& context, const S3Name& name,
                                        std::string_view version_id) {
  S3Call call{.verb = "open", .method = "HEAD", .name = name};
  if (!version_id.empty()) call.query = {{"versionId", std::string(version_id)}};
  TC_ASSIGN_OR_RETURN(const HttpReply reply, Send(context, call));
  const std::string subject = absl::StrCat("open ", UriOf(name));
  if (reply.status == 400) {
    return absl::PermissionDeniedError(absl::StrCat(
        subject, ": the server answered 400, and a HEAD request gets no reason; check the region ",
        "and whether the session credentials have expired"));
  }
  TC_RETURN_IF_ERROR(StatusOfS3Reply(subject, reply));
  S3Object object{.etag = std::string(reply.Header("etag")),
                  .version_id = std::string(reply.Header("x-amz-version-id"))};
  if (object.version_id == "null") object.version_id.clear();  // written while versions were not kept
  if (object.etag.empty() || !absl::SimpleAtoi(reply.Header("content-length"), &object.bytes)) {
    return absl::DataLossError(absl::StrCat(subject, ": the server gives no ",
                                            object.etag.empty() ? "ETag" : "size", "; check the endpoint"));
  }
  return object;
}

absl::Status S3Client::Read(const RequestContext& context, const S3Name& name, std::string_view version_id,
                            const RangedRead& read) {
  S3Call call{.verb = "read", .name = name, .read = read};
  if (!version_id.empty()) call.query = {{"versionId", std::string(version_id)}};
  TC_ASSIGN_OR_RETURN(const HttpReply reply, Send(context, call));
  return StatusOfS3Reply(absl::StrCat("read ", UriOf(name)), reply);
}

absl::StatusOr<std::vector<std::string>> S3Client::List(const RequestContext& context, const S3Name& name,
                                                        size_t max_names, std::string_view delimiter) {
  const std::string subject = absl::StrCat("list ", UriOf(name));
  // A list is a request about the bucket, with the prefix in the query.
  const S3Name bucket{.bucket = name.bucket};
  std::vector<std::string> names;
  int pages_without_names = 0;  // in a row
  std::string token;
  do {
    S3Call call{.verb = "list", .name = bucket};
    if (!token.empty()) call.query.emplace_back("continuation-token", token);
    if (!delimiter.empty()) call.query.emplace_back("delimiter", delimiter);
    call.query.emplace_back("list-type", "2");
    // 1000 is the most that a page has anyway.
    if (max_names < 1000) call.query.emplace_back("max-keys", absl::StrCat(max_names));
    call.query.emplace_back("prefix", name.key);
    TC_ASSIGN_OR_RETURN(const HttpReply reply, Send(context, call));
    TC_RETURN_IF_ERROR(StatusOfS3Reply(subject, reply));
    const absl::StatusOr<XmlElement> page = ParseXml(reply.body);
    if (!page.ok()) {
      return absl::UnavailableError(absl::StrCat(subject, ": the reply is malformed (",
                                                 page.status().message(), "); check the endpoint"));
    }
    const size_t names_before = names.size();
    for (const XmlElement& child : page->children) {
      const bool folder = child.name == "CommonPrefixes";
      if (!folder && child.name != "Contents") continue;
      std::string_view listed = child.TextOf(folder ? "Prefix" : "Key");
      // What a server adds from outside of the prefix is not believed.
      if (!absl::ConsumePrefix(&listed, name.key)) continue;
      if (folder) listed = absl::StripSuffix(listed, "/");
      if (listed.empty()) continue;  // the prefix itself may be an object
      // Consoles mark a folder by an object with a name that ends at a '/'. What is left out counts for
      // nothing: else hidden objects alone could fill the list.
      if (delimiter.empty() && (listed.ends_with('/') || IsHiddenPath(listed))) continue;
      names.emplace_back(listed);
    }
    const std::string next(page->TextOf("NextContinuationToken"));
    if (page->TextOf("IsTruncated") != "true") break;
    // A server that repeats its token would keep this loop going for ever.
    if (next.empty() || next == token) {
      return absl::UnavailableError(absl::StrCat(
          subject, ": the server gives no new page of a list that is not complete; check the endpoint"));
    }
    pages_without_names = names.size() > names_before ? 0 : pages_without_names + 1;
    if (pages_without_names == kMaxPagesWithoutNames) {
      return absl::UnavailableError(absl::StrCat(subject, ": ", pages_without_names,
                                                 " pages in a row list only hidden objects; remove the "
                                                 "hidden objects, or put with --no-files"));
    }
    token = next;
  } while (names.size() < max_names);
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace tensorcast::objects
