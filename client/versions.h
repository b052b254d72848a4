// VersionsClient makes the calls of proto/versions.proto and returns their responses. For the command
// line, Python and the tests; not part of the installed package. Thread-safe. tensorcast/client.h describes
// the errors and clocks.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/replica/replica.h"
#include "proto/versions.pb.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

class DaemonLink;

class VersionsClient {
 public:
  // Connects like AdminClient::Connect.
  static absl::StatusOr<std::unique_ptr<VersionsClient>> Connect(const ClientOptions& options);
  ~VersionsClient();
  VersionsClient(const VersionsClient&) = delete;
  VersionsClient& operator=(const VersionsClient&) = delete;

  // A node's id or name, and the location there.
  using Targets = std::vector<std::pair<std::string, Location>>;
  // From now on the global store keeps the targets at the key's newest version. Accepts any number of
  // targets. Each target's result has the error of this target.
  absl::StatusOr<v1::FollowKeyResponse> FollowKey(const RequestContext& context, std::string_view key,
                                                  const Targets& targets);
  // The targets that follow `key`, or any key if `key` is empty. Returns all pages in one response.
  absl::StatusOr<v1::ListFollowersResponse> ListFollowers(const RequestContext& context,
                                                          std::string_view key);
  // Ends the following of the key at these targets, or at all targets if `targets` is empty. Keeps existing
  // replicas.
  absl::StatusOr<v1::UnfollowKeyResponse> UnfollowKey(const RequestContext& context, std::string_view key,
                                                      const Targets& targets);

  // Polls once as a member of a version group. If the daemon or the global store cannot be reached, retries
  // until the context ends.
  absl::StatusOr<v1::AgreeOnVersionResponse> AgreeOnVersion(const RequestContext& context,
                                                            const v1::AgreeOnVersionRequest& request);

 private:
  struct Stubs;
  explicit VersionsClient(std::unique_ptr<DaemonLink> link);

  const std::unique_ptr<DaemonLink> link_;
  const std::unique_ptr<Stubs> stubs_;
};

}  // namespace tensorcast::client
