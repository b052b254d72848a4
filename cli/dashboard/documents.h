// The JSON documents of the dashboard, from the answers of daemons and the global store: the messages of the
// commands' --json, paged and joined. README.md describes each.
//
// Thread-safe. Every call takes a bounded time; data that several views need is requested once. Errors:
// NOT_FOUND for a view, node, artifact or key that does not exist, INVALID_ARGUMENT for a parameter,
// otherwise the error of a server.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "cli/dashboard/http_request.h"
#include "tensorcast/client.h"

namespace tensorcast::dashboard {

inline constexpr size_t kMaxDocumentBytes = 2 << 20;

class Documents {
 public:
  struct Options {
    // How to connect to the daemon or global store that the dashboard is beside; called for each new
    // connection, since none needs to run when the dashboard starts.
    std::function<absl::StatusOr<client::ClientOptions>()> connect;
    std::string version;  // of this program
  };
  explicit Documents(Options options);
  ~Documents();

  absl::StatusOr<nlohmann::json> Make(const std::string& view, const Query& query);

 private:
  class Maker;
  const std::unique_ptr<Maker> maker_;
};

}  // namespace tensorcast::dashboard
