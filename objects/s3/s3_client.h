// The requests to an S3-compatible store: AWS, MinIO, Ceph, SeaweedFS, Cloudflare R2, and Google's through
// its XML API. Each is signed for the place that it goes to, at the time that it goes.
//
// A bucket may lie in another region, or at another endpoint, than the options say: the store answers with a
// redirect. Its place is asked for (S3Options::may_follow), kept, and signed for. Of a Location only
// scheme, host and port count: no server chooses which object is read.
//
// Thread-safe. Errors are HttpClient's and StatusOfReply's, and name the object by its URI.
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

// Begins the version of an object in a bucket that keeps versions.
inline constexpr std::string_view kS3VersionId = "version:";

struct S3Options {
  std::string scheme = "s3";  // of the URIs; "gs" for Google's
  std::string endpoint;       // "https://host:9000"; empty: AWS's of the region
  std::string region = "us-east-1";
  // Where the name of the bucket goes: into the path, or in front of the host. kAuto: into the path of an
  // endpoint of one's own, or where the name has a dot, which certificates of AWS's hosts do not cover.
  enum class Addressing { kAuto, kPath, kVirtualHost } addressing = Addressing::kAuto;
  std::shared_ptr<CredentialSource> credentials;  // null: requests are anonymous
  // Whether requests may go on to another place. Null: to AWS's other regions alone.
  std::function<absl::Status(const Url& from, const Url& to)> may_follow;
  std::function<bool(const Url&)> may_be_local;        // HttpRequest's
  std::function<absl::Time()> wall_clock = absl::Now;  // signatures have the time of day
};

struct S3Name {
  std::string bucket;
  std::string key;  // as it is, not encoded; may be empty, or end at a '/'

  // "<scheme>://bucket/key". INVALID_ARGUMENT for anything else, and for a name that no bucket can have.
  static absl::StatusOr<S3Name> Parse(std::string_view scheme, std::string_view uri);
};

// An object as HEAD shows it.
struct S3Object {
  uint64_t bytes = 0;
  std::string etag;
  std::string version_id;  // empty: the bucket keeps no versions
};

// A request about one object, or about a bucket where the key is empty.
struct S3Call {
  std::string verb;  // for errors: "read"
  std::string method = "GET";
  const S3Name& name;
  std::vector<std::pair<std::string, std::string>> query = {};
  HttpHeaders headers = {};    // signed, too
  std::string_view body = {};  // borrowed for the call; its SHA-256 is signed
  std::optional<RangedRead> read = std::nullopt;
};

// A reply that is not 2xx as an error, with the store's own words.
absl::Status StatusOfS3Reply(std::string_view subject, const HttpReply& reply);

class S3Client {
 public:
  S3Client(std::shared_ptr<HttpClient> http, S3Options options);

  const S3Options& options() const { return options_; }
  std::string UriOf(const S3Name& name) const;

  // Of the version that HEAD showed.
  ObjectIdentity IdentityOf(const S3Name& name, const S3Object& object) const;

  // A reply of any status; redirects and credentials that have expired are dealt with.
  absl::StatusOr<HttpReply> Send(const RequestContext& context, const S3Call& call);

  absl::StatusOr<S3Object> Head(const RequestContext& context, const S3Name& name,
                                std::string_view version_id = "");
  absl::Status Read(const RequestContext& context, const S3Name& name, std::string_view version_id,
                    const RangedRead& read);
  // What lies right below the prefix `name.key`: names without it, those of folders without their '/'.
  // Ascending. `max_names`: more are not asked for. Without a delimiter all keys below the prefix.
  absl::StatusOr<std::vector<std::string>> List(const RequestContext& context, const S3Name& name,
                                                size_t max_names = ~size_t{0},
                                                std::string_view delimiter = "/");

 private:
  struct Place {
    Url endpoint;
    std::string region;
  };
  absl::StatusOr<Place> PlaceOf(const std::string& bucket);
  // Where the reply says that the bucket is; nullopt: it says nothing new.
  std::optional<Place> MovedTo(const std::string& bucket, const Place& from, const HttpReply& reply) const;
  bool IsVirtualHost(const std::string& bucket, const Place& place) const;
  Url UrlOf(const S3Call& call, const Place& place) const;

  const std::shared_ptr<HttpClient> http_;
  const S3Options options_;
  absl::Mutex mutex_;
  std::map<std::string, Place> places_ ABSL_GUARDED_BY(mutex_);  // of buckets that were found elsewhere
};

}  // namespace tensorcast::objects
