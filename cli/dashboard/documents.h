// The JSON documents of the dashboard, made from the answers of daemons and the global store. They contain
// the messages that commands print with --json. README.md describes each document.
//
// Thread-safe. Every call takes a bounded time. Errors: NOT_FOUND for a view, node, artifact or key that does
// not exist; INVALID_ARGUMENT for a wrong parameter; otherwise the error of a server.
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
    // The options for connecting to the daemon or global store of the dashboard. Called for each new
    // connection.
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
