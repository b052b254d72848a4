// The list `daemon.origins`: the places outside its host that a daemon may read with its own credentials, for
// any client that asks. A place that is not listed is refused even if it needs no credentials, since the
// daemon may reach places that the client cannot reach. Immutable; thread-safe.
//
// An entry is a prefix: "s3://bucket/models/", "gs://bucket/", "https://host:8443/models/", "hf://" (every
// repository) or "hf://org/". Scheme, host, port and bucket are compared exactly, and paths up to a '/': the
// prefix "…/models" holds "…/models" itself and what is below "…/models/", and not "…/models2".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "objects/http/url.h"

namespace tensorcast::objects {

class Origins {
 public:
  // `endpoints`: URLs of the stores and hubs that the operator configured for this process (AWS_ENDPOINT_URL,
  // HF_ENDPOINT). Reads through an endpoint need no entry for it, and an endpoint may be a local address.
  // INVALID_ARGUMENT for an entry that is not such a prefix.
  static absl::StatusOr<Origins> Parse(const std::vector<std::string>& prefixes,
                                       const std::vector<std::string>& endpoints = {});

  Origins() = default;  // nothing may be read

  // PERMISSION_DENIED when the URI is not below an entry, or when its path is ambiguous ("..", "%2e", an
  // empty component). INVALID_ARGUMENT for a text that is not a URI of a known scheme.
  absl::Status Check(std::string_view uri) const;

  // Whether an allowed request may follow a redirect to `to`. For https:// and http:// objects, `to` must be
  // listed itself. `hub` is true for hf://, which has files on other hosts: then `to` may be any https
  // URL that leads to no local host, or a URL of the same endpoint.
  absl::Status CheckRedirect(const Url& from, const Url& to, bool hub) const;

  // Whether this URL may lead to a local address: true for endpoints, and for entries that name a local
  // address themselves.
  bool MayBeLocal(const Url& url) const;

 private:
  struct Prefix {
    std::string place;  // scheme, host, port or bucket: compared exactly; "hf://" stands for all of it
    std::string path;   // begins with '/', does not end with one
  };
  static absl::StatusOr<Prefix> Split(std::string_view uri);
  bool IsEndpoint(const Url& url) const;

  std::vector<Prefix> prefixes_;
  std::vector<Url> endpoints_;
};

}  // namespace tensorcast::objects
