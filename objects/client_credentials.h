// A client's own credentials for one import: "put s3://..." works if the client may read the bucket. The
// daemon of the host then needs neither credentials nor a listed origin.
//
//   client  FindClientCredentials: environment, profile, web identity, container, instance; HF_TOKEN
//      │    Hand: a sealed memfd, offered on the handle socket as files are
//      ▼
//   daemon  Take: into Secrets; OpenForClient: a store for only this import
//
// The secrets pass through no message and no log, are in no core file of either process, and are gone with
// the last reader of the import. Client and daemon must be of the same release to read the memfd's format.
//
// Values and functions without state; thread-safe. Messages name no secret.
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

// The credentials that this process would use to read the URI. nullopt if it has none, or if the URI's scheme
// takes none. Errors are those of the provider that should have given the credentials.
absl::StatusOr<std::optional<ClientCredentials>> FindClientCredentials(const RequestContext& context,
                                                                       const std::string& uri,
                                                                       const Environment& environment);

// Writes the credentials to a sealed memfd, which the caller offers on the handle socket. RESOURCE_EXHAUSTED
// if the system gives no memfd.
absl::StatusOr<UniqueFd> Hand(const ClientCredentials& credentials);
// Reads a memfd that Hand made. INVALID_ARGUMENT for any other file: such a file could change or block while
// it is read.
absl::StatusOr<ClientCredentials> Take(int memory_file);

// A store for the import of `uri`. It reads only objects of that URI, and not the hub's cache of this host.
// `environment` is this process's. The store connects to a loopback or link-local address only if
// `environment` names it as an endpoint, because a service there may trust the daemon but not the client.
// `rates` limits all reads of this process; null: no limit. INVALID_ARGUMENT for a URI with a scheme that
// takes no credentials.
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenForClient(const std::string& uri,
                                                           ClientCredentials credentials,
                                                           const Environment& environment,
                                                           std::shared_ptr<ReadRates> rates = nullptr);

}  // namespace tensorcast::objects
