// Which places outside a daemon may read with its own credentials, for any client that asks: the list
// `daemon.origins`. What is not listed is refused, also where reading it would need no credentials, since the
// daemon may reach what the client does not. Immutable; thread-safe.
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
  // HF_ENDPOINT). They count as listed for what is read through them, and may be local addresses.
  // INVALID_ARGUMENT for an entry that is not such a prefix.
  static absl::StatusOr<Origins> Parse(const std::vector<std::string>& prefixes,
                                       const std::vector<std::string>& endpoints = {});

  Origins() = default;  // nothing may be read

  // PERMISSION_DENIED when the URI is not below an entry, or its path could be read as another one ("..",
  // "%2e", an empty component). INVALID_ARGUMENT for what is not a URI of a known scheme.
  absl::Status Check(std::string_view uri) const;

  // Whether a request that was allowed may go on to `to`. Of an object of https:// or http:// that has to be
  // listed itself. `hub`: of hf://, with files on other hosts: by https to any host that is not local,
  // or within an endpoint.
  absl::Status CheckRedirect(const Url& from, const Url& to, bool hub) const;

  // Whether connections to local addresses may be made for this URL: those of endpoints, and of entries that
  // name such an address themselves.
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
