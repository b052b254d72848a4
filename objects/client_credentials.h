// A client's own credentials for one import: "put s3://..." works with a client's permission to read the
// bucket, while the daemon of the host has no credentials and lists no origins.
//
//   client  FindClientCredentials: environment, profile, web identity, container, instance; HF_TOKEN
//      │    Hand: a sealed memfd, offered on the handle socket as files are
//      ▼
//   daemon  Take: into Secrets; OpenForClient: a store of this one import
//
// The secrets pass through no message and no log, are in no core file of either process, and are gone with
// the last reader of the import. The format between the two is of one release; see the source.
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
  std::optional<Credentials> keys;  // of s3:// and gs://
  Secret hub_token;                 // of hf://
  // Where the client itself would read; empty: AWS's endpoint of the region, and Hugging Face's hub.
  std::string s3_endpoint;
  std::string region = "us-east-1";
  std::string hub_endpoint;
};

// What this process would read the URI with; nullopt: it has none, or the URI's scheme has none. Errors are
// those of the place that should have given them.
absl::StatusOr<std::optional<ClientCredentials>> FindClientCredentials(const RequestContext& context,
                                                                       const std::string& uri,
                                                                       const Environment& environment);

// A memory file for the handle socket. RESOURCE_EXHAUSTED where the system gives none.
absl::StatusOr<UniqueFd> Hand(const ClientCredentials& credentials);
// INVALID_ARGUMENT for anything but what Hand made: another file may change while it is read, or hang.
absl::StatusOr<ClientCredentials> Take(int memory_file);

// A store for the one import of `uri`, which reads nothing beside it, not even the hub's cache of this host.
// `environment`: this process's. A loopback or link-local address is read only where that names it as an
// endpoint: a service there may trust the daemon and not the client. `rates`: of all reads of this process;
// null: no limit. INVALID_ARGUMENT for a URI that no credentials are for.
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenForClient(const std::string& uri,
                                                           ClientCredentials credentials,
                                                           const Environment& environment,
                                                           std::shared_ptr<ReadRates> rates = nullptr);

}  // namespace tensorcast::objects
