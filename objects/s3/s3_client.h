// Sends requests to an S3-compatible store: AWS, MinIO, Ceph, SeaweedFS, Cloudflare R2, and Google's store
// through its XML API. Source: "Amazon S3 API Reference". Each attempt is signed anew (sigv4.h).
//
// A bucket may be in another region, or at another endpoint, than S3Options says; the store then answers with
// a redirect or names the region. If S3Options::may_follow allows the new place, the client stores it and
// signs for it. The client takes only scheme, host and port from a Location header, so a server cannot choose
// which object is read.
//
// Thread-safe. Errors are those of HttpClient and StatusOfReply, and name the object by its URI.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "core/artifact/origin.h"
#include "objects/credentials/credentials.h"
#include "objects/http/http_client.h"
#include "objects/http/url.h"

namespace tensorcast::objects {

// The prefix of ObjectIdentity's version for an object in a bucket that keeps versions.
inline constexpr std::string_view kS3VersionId = "version:";

struct S3Options {
  std::string scheme = "s3";  // of the URIs; "gs" for Google's
  std::string endpoint;       // "https://host:9000"; empty: AWS's endpoint of `region`
  std::string region = "us-east-1";
  // Where a URL has the bucket's name: in the path (kPath), or as the first part of the host (kVirtualHost).
  // kAuto: in the path if `endpoint` is set, or if the name has a dot (AWS's certificates do not cover it),
  // '_' or upper case; else in the host.
  enum class Addressing { kAuto, kPath, kVirtualHost } addressing = Addressing::kAuto;
  std::shared_ptr<CredentialSource> credentials;  // null: requests are anonymous
  // OK if requests may be redirected to another place. Null: only to other regions of AWS.
  std::function<absl::Status(const Url& from, const Url& to)> may_follow;
  std::function<bool(const Url&)> may_be_local;        // as HttpRequest::may_be_local
  std::function<absl::Time()> wall_clock = absl::Now;  // signatures contain the time
};

struct S3Name {
  std::string bucket;
  std::string key;  // not encoded; may be empty, or end with '/'

  // Parses "<scheme>://bucket/key". INVALID_ARGUMENT for another form, and for an invalid bucket name.
  static absl::StatusOr<S3Name> Parse(std::string_view scheme, std::string_view uri);
};

// The properties of an object, from a HEAD request.
struct S3Object {
  uint64_t bytes = 0;
  std::string etag;
  std::string version_id;  // empty: the bucket keeps no versions
};

// A request about an object, or about a bucket if the key is empty.
struct S3Call {
  std::string verb;  // for errors: "read"
  std::string method = "GET";
  const S3Name& name;
  std::vector<std::pair<std::string, std::string>> query = {};
  HttpHeaders headers = {};    // signed, too
  std::string_view body = {};  // borrowed for the call; its SHA-256 is signed
  std::optional<RangedRead> read = std::nullopt;
};

// As StatusOfReply, with the store's error message as the detail.
absl::Status StatusOfS3Reply(std::string_view subject, const HttpReply& reply);

class S3Client {
 public:
  S3Client(std::shared_ptr<HttpClient> http, S3Options options);

  const S3Options& options() const { return options_; }
  std::string UriOf(const S3Name& name) const;

  // The identity of `object`, which Head has returned for `name`.
  ObjectIdentity IdentityOf(const S3Name& name, const S3Object& object) const;

  // Returns a reply of any status. Follows redirects. If the store says that the credentials have expired,
  // sends the request once more with new ones.
  absl::StatusOr<HttpReply> Send(const RequestContext& context, const S3Call& call);

  absl::StatusOr<S3Object> Head(const RequestContext& context, const S3Name& name,
                                std::string_view version_id = "");
  absl::Status Read(const RequestContext& context, const S3Name& name, std::string_view version_id,
                    const RangedRead& read);
  // The names directly below the prefix `name.key`, without the prefix, ascending; names of folders have no
  // '/' at their end. Requests no further page once it has `max_names` names; the last page may have more
  // names, and all are returned. With an empty delimiter: the keys of all objects below the prefix, as in
  // ObjectFolder::ListBelow.
  absl::StatusOr<std::vector<std::string>> List(const RequestContext& context, const S3Name& name,
                                                size_t max_names = ~size_t{0},
                                                std::string_view delimiter = "/");

 private:
  struct Place {
    Url endpoint;
    std::string region;
  };
  absl::StatusOr<Place> PlaceOf(const std::string& bucket);
  // The place that the reply names for the bucket; nullopt: the reply names no new place.
  std::optional<Place> MovedTo(const std::string& bucket, const Place& from, const HttpReply& reply) const;
  bool IsVirtualHost(const std::string& bucket, const Place& place) const;
  Url UrlOf(const S3Call& call, const Place& place) const;

  const std::shared_ptr<HttpClient> http_;
  const S3Options options_;
  absl::Mutex mutex_;
  std::map<std::string, Place> places_ ABSL_GUARDED_BY(mutex_);  // of buckets in another place than options_
};

}  // namespace tensorcast::objects
