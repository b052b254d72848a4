// The list `daemon.origins`: the places outside this host that the daemon may read with its own credentials,
// for any client. A place that is not listed is refused even if it needs no credentials, because the daemon
// may reach hosts that the client cannot reach. Immutable; thread-safe.
//
// An entry is a prefix: "s3://bucket/models/", "gs://bucket/", "https://host:8443/models/", "hf://" (every
// repository) or "hf://org/". Scheme, host, port and bucket must be equal. Paths are compared by whole
// components: the prefix "…/models" covers "…/models" and all below "…/models/", but not "…/models2".
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
  // HF_ENDPOINT). A read through an endpoint needs no entry in `prefixes`, and an endpoint may be a local
  // address. INVALID_ARGUMENT for an entry that is not such a prefix.
  static absl::StatusOr<Origins> Parse(const std::vector<std::string>& prefixes,
                                       const std::vector<std::string>& endpoints = {});

  Origins() = default;  // nothing may be read

  // PERMISSION_DENIED if the URI is not below an entry, or if its path is ambiguous ("..", "%2e", an empty
  // component). INVALID_ARGUMENT for a text that is not a URI of a known scheme.
  absl::Status Check(std::string_view uri) const;

  // OK if an allowed request may follow a redirect to `to`, else PERMISSION_DENIED. A URL of an endpoint is
  // always allowed. Any other `to` must be listed if the object is https:// or http:// (`hub` false). A
  // hub has files on many other hosts, so for hf:// (`hub` true) `to` may be any https URL with a host that
  // is not local.
  absl::Status CheckRedirect(const Url& from, const Url& to, bool hub) const;

  // Whether a connection for `url` is allowed to go to a local address: true for endpoints, and for listed
  // URLs that name a local address or "localhost".
  bool MayBeLocal(const Url& url) const;

 private:
  struct Prefix {
    std::string place;  // "https://host:port", "s3://bucket", or "hf://" for all repositories; exact
    std::string path;   // begins with '/', does not end with one
  };
  static absl::StatusOr<Prefix> Split(std::string_view uri);
  bool IsEndpoint(const Url& url) const;

  std::vector<Prefix> prefixes_;
  std::vector<Url> endpoints_;
};

}  // namespace tensorcast::objects
