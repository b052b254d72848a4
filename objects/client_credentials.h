// A client's own credentials for one import: "put s3://..." works if the client may read the bucket. For such
// an import the daemon needs neither its own credentials nor an entry in daemon.origins.
//
//   client  FindClientCredentials: environment, profile, web identity, container, instance; HF_TOKEN
//      │    Hand: a sealed memfd, offered on the handle socket as files are
//      ▼
//   daemon  Take: into Secrets; OpenForClient: a store for only this import
//
// The secrets appear in no message, log or core file of either process. The daemon wipes them when the last
// reader of the import is destroyed. Client and daemon must be of the same release, because the memfd's
// format may change.
//
// Values and functions without state; thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "base/request_context.h"
#include "core/source/object_reader.h"
#include "objects/credentials/credentials.h"
#include "objects/credentials/profile.h"
#include "objects/http/read_rates.h"
#include "objects/http/secret.h"

namespace tensorcast::objects {

struct ClientCredentials {
  std::optional<Credentials> keys;  // for s3:// and gs://
  Secret hub_token;                 // for hf://
  // The endpoints that the client would use; empty: AWS's endpoint of `region`, and Hugging Face's hub.
  std::string s3_endpoint;
  std::string region = "us-east-1";
  std::string hub_endpoint;
};

// Finds the credentials that this process would use to read the URI. nullopt if this process has none, or if
// the URI's scheme uses no credentials. If a configured provider gives no credentials, returns that
// provider's error.
absl::StatusOr<std::optional<ClientCredentials>> FindClientCredentials(const RequestContext& context,
                                                                       const std::string& uri,
                                                                       const Environment& environment);

// Writes the credentials to a sealed memfd, which the caller offers on the handle socket. RESOURCE_EXHAUSTED
// if the system gives no memfd; INVALID_ARGUMENT if the credentials have more than 64 KiB.
absl::StatusOr<UniqueFd> Hand(const ClientCredentials& credentials);
// Reads a memfd that Hand made. INVALID_ARGUMENT for any other file.
absl::StatusOr<ClientCredentials> Take(int memory_file);

// Opens a store for the import of `uri`. The store reads only `uri` and the objects below `uri`, and does not
// read the hub's cache of this host. `environment`: the environment of this process. The store connects to a
// loopback or link-local address only if `environment` names that address as an endpoint. `rates` limits all
// reads of this process; null: no limit.
// INVALID_ARGUMENT if the credentials do not fit the URI's scheme, or the scheme uses no credentials.
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenForClient(const std::string& uri,
                                                           ClientCredentials credentials,
                                                           const Environment& environment,
                                                           std::shared_ptr<ReadRates> rates = nullptr);

}  // namespace tensorcast::objects
